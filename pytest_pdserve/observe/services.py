"""Whether each service answers, and what it says it serves."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pytest_pdserve.engines import ENGINES
from pytest_pdserve.target.ask import ask
from pytest_pdserve.target.models import read_models
from pytest_pdserve.wire import Outcome

if TYPE_CHECKING:
    import httpx

    from pytest_pdserve.settings import Credential
    from pytest_pdserve.target import Service, Target
    from pytest_pdserve.target.ask import Answer

LOOK: Final = 2.0
"""Seconds that one look at one service may take: less than the grace that a hung probe leaves us."""
UNKNOWN_PATH: Final = frozenset({404, 405})
"""How servers say that they lack a path; vllm-router answers 405 to every GET that it doesn't know."""
LOCKED: Final = frozenset({401, 403})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceState:
    """How one service answered a cheap question that makes it compute nothing."""

    service: Service
    path: str
    """What was asked."""
    status: int | None
    """The HTTP status; None if none came."""
    seconds: float | None
    """Until the whole answer was there; None if it never was."""
    problem: str
    """One line; empty when it answered as a service that is up does."""

    @property
    def ready(self) -> bool:
        """Whether it says that it is up. That proves nothing about the path through it."""
        return not self.problem

    def __str__(self) -> str:
        took = f" in {self.seconds * 1000:.0f} ms" if self.seconds is not None else ""
        return f"{self.service.name}: {self.problem or f'{self.status} from {self.path}{took}'}"


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
        """How one service answers on the first of its engine's paths that it knows, within `deadline` seconds.

        A service that wants a key which its host may not be sent counts as up.
        """
        until = time.monotonic() + deadline
        for path in self._engine.ready[service.role]:
            url = service.url + path
            answer = await ask(self._http, self._credential, url, deadline=max(until - time.monotonic(), 0))
            if answer.status not in UNKNOWN_PATH:
                break
        timeline = answer.exchange.timeline
        took = timeline.ended - timeline.started if timeline.ended is not None else None
        locked = answer.status in LOCKED and not self._credential.trusts(url)
        return ServiceState(
            service=service,
            path=path,
            status=answer.status,
            seconds=took,
            problem="" if locked else self._problem(path, answer),
        )

    async def models(self, service: Service, *, deadline: float = LOOK) -> tuple[str, ...] | str:
        """The ids of the models that one service lists, or one line why there is no list."""
        path = self._engine.models_path
        answer = await ask(self._http, self._credential, service.url + path, deadline=deadline)
        listed = read_models(answer.json) if answer.ok else None
        if listed is None:
            return self._problem(path, answer) or f"{path} is no list of models: {answer.shown()}"
        return tuple(model.id for model in listed)

    async def evidence(self) -> list[str]:
        """What the services show now, one line each, for a finding."""
        return [f"meanwhile {state}" for state in await self.look()]

    def _problem(self, path: str, answer: Answer) -> str:
        if answer.ok:
            # What stands in for a service that is down (a captive portal, a default site) likes to answer 200.
            html = "html" in (answer.exchange.header("content-type") or "").lower()
            return f"{path} is {answer.shown()}" if html else ""
        if answer.exchange.outcome is Outcome.REFUSED:
            return f"{answer.status} from {path}: {answer.shown()}"
        return f"{path}: {self._credential.mask(answer.reason)}"
