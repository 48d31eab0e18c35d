"""Whether each service answers, and what it says it serves."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pytest_pdserve.engines import ENGINES
from pytest_pdserve.target.ask import ask
from pytest_pdserve.target.models import read_models

if TYPE_CHECKING:
    import httpx

    from pytest_pdserve.settings import Credential
    from pytest_pdserve.target import Service, Target
    from pytest_pdserve.target.ask import Answer

LOOK: Final = 2.0
"""Seconds that one question to one service may take: less than the grace that a hung probe leaves us."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceState:
    """How one service answered a cheap question that makes it compute nothing."""

    service: Service
    path: str
    """What was asked."""
    seconds: float | None
    """Until the whole answer was there; None if it never was."""
    problem: str
    """One line; empty when it answered with a 2xx."""

    @property
    def ready(self) -> bool:
        """Whether it says that it is up. That proves nothing about the path through it."""
        return not self.problem

    def __str__(self) -> str:
        took = f" in {self.seconds * 1000:.0f} ms" if self.seconds is not None else ""
        return f"{self.service.name}: {self.problem or f'200 from {self.path}{took}'}"


class Observer:
    """Asks the services of one target. Read-only; every question is bounded."""

    def __init__(self, target: Target, http: httpx.AsyncClient, credential: Credential) -> None:
        self._target = target
        self._engine = ENGINES[target.engine]
        self._http = http
        self._credential = credential

    async def look(self) -> tuple[ServiceState, ...]:
        """How every service answers right now, all asked at the same time."""
        return tuple(await asyncio.gather(*(self.state(service) for service in self._target.services)))

    async def state(self, service: Service, *, deadline: float = LOOK) -> ServiceState:
        """How one service answers on the first of its engine's paths that it knows."""
        paths = self._engine.ready[service.role]
        for path in paths:
            answer = await ask(self._http, self._credential, service.url + path, deadline=deadline)
            if answer.status != 404:
                break
        timeline = answer.exchange.timeline
        took = timeline.ended - timeline.started if timeline.ended is not None else None
        return ServiceState(service=service, path=path, seconds=took, problem=_problem(path, answer))

    async def models(self, service: Service, *, deadline: float = LOOK) -> tuple[str, ...] | str:
        """The ids of the models that one service lists, or one line why there is no list."""
        path = self._engine.models_path
        answer = await ask(self._http, self._credential, service.url + path, deadline=deadline)
        listed = read_models(answer.json) if answer.ok else None
        if listed is None:
            return _problem(path, answer) or f"{path} is no list of models: {answer.shown()}"
        return tuple(model.id for model in listed)

    async def evidence(self) -> list[str]:
        """What the services show now, one line each, for a finding."""
        return [f"meanwhile {state}" for state in await self.look()]


def _problem(path: str, answer: Answer) -> str:
    if answer.ok:
        return ""
    return f"{answer.status} from {path}: {answer.shown()}" if answer.came else f"{path}: {answer.reason}"
