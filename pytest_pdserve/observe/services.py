"""Whether each service answers, and what it says it serves."""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pytest_pdserve.engines import ENGINES
from pytest_pdserve.evidence import Reading, Surroundings, Watched
from pytest_pdserve.observe.bisect import Bisector
from pytest_pdserve.observe.gauges import read_gauges
from pytest_pdserve.settings import one_line
from pytest_pdserve.target import Role
from pytest_pdserve.target.ask import ask
from pytest_pdserve.target.models import read_models
from pytest_pdserve.wire import Outcome

if TYPE_CHECKING:
    import httpx

    from pytest_pdserve.chat import ChatRequest
    from pytest_pdserve.settings import Credential
    from pytest_pdserve.target import Service, Target
    from pytest_pdserve.target.ask import Answer

LOOK: Final = 2.0
"""Seconds that one look at one service may take."""
BETWEEN: Final = 1.0
"""Seconds between two readings: long enough that an engine that works shows it."""
CANARY: Final = 5.5
"""Seconds that a canary may take: with the look before it less than the grace that a hung probe leaves us."""
CANARY_LEAST: Final = 2.0
PATIENCE: Final = 5.0
"""A canary is given so many times what a small answer usually takes."""
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

    def __init__(
        self,
        target: Target,
        http: httpx.AsyncClient,
        credential: Credential,
        *,
        longest: float | None = None,
    ) -> None:
        """`longest` is how many seconds an answer may take at all, where the settings say so."""
        self._target = target
        self._engine = ENGINES[target.engine]
        self._http = http
        self._credential = credential
        self._bisector = Bisector(target, http, credential)
        self._gathering: asyncio.Task[Surroundings] | None = None
        self._small: deque[float] = deque(maxlen=9)
        self._longest = longest or math.inf

    @property
    def services(self) -> tuple[Service, ...]:
        """The services that it looks at."""
        return self._target.services

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

    async def reading(self, service: Service, *, deadline: float = LOOK) -> Reading:
        """What a service's metrics say now, by meaning; `problem` says in one line why they say nothing."""
        url = service.url + self._engine.metrics_path
        answer = await ask(self._http, self._credential, url, deadline=deadline)
        at = time.monotonic()
        if not answer.ok:
            return Reading(at=at, values={}, problem=self._problem(self._engine.metrics_path, answer))
        page = bytes(answer.exchange.body.data).decode("utf-8", "replace")
        try:
            return Reading(at=at, values=read_gauges(page, self._engine, service.role))
        except ValueError as error:
            return Reading(
                at=at, values={}, problem=f"metrics that can't be read: {one_line(str(error))[:120]}"
            )

    async def watch(self, *, readings: int = 2) -> tuple[Watched, ...]:
        """Every service, all at the same time: whether it answers, and what its gauges show, twice a second apart.

        Takes at most about 3 s, whatever they do. Routers and proxies show their metrics elsewhere.
        """
        return tuple(
            await asyncio.gather(*(self._watched(service, readings) for service in self._target.services))
        )

    async def _watched(self, service: Service, readings: int) -> Watched:
        until = time.monotonic() + LOOK + BETWEEN
        shows = service.role in (Role.PREFILL, Role.DECODE)
        if shows:
            state, first = await asyncio.gather(self.state(service), self.reading(service))
            read = [first]
        else:
            state, read = await self.state(service), []
        while read and read[-1].values and len(read) < readings:
            await asyncio.sleep(max(read[-1].at + BETWEEN - time.monotonic(), 0.0))
            read.append(await self.reading(service, deadline=max(until - time.monotonic(), 0.1)))
        return Watched(
            name=service.name,
            role=service.role,
            problem=state.problem,
            seconds=state.seconds,
            reached=state.status is not None,
            readings=tuple(reading for reading in read if reading.values),
            current=self._engine.gauges_current,
        )

    async def surroundings(
        self, failed: ChatRequest | None = None, *, reused: bool = False, still_open: bool = False
    ) -> Surroundings:
        """What the services show, and then how canaries fare, within about 9 s.

        `failed` is the request that something is wrong with, `reused` whether it went over a kept connection, and
        `still_open` whether it is waiting even now, so that what stands still can be seen. Those who ask while
        another's are being gathered get the same: requests that hang together need one look.
        """
        if self._gathering is None or self._gathering.done():
            gathered = self._gather(failed, reused=reused, still_open=still_open)
            self._gathering = asyncio.create_task(gathered)
        return await asyncio.shield(self._gathering)

    async def _gather(self, failed: ChatRequest | None, *, reused: bool, still_open: bool) -> Surroundings:
        # Watched first: canaries would show in the gauges.
        watched = await self.watch(readings=2 if still_open else 1)
        bound = self.patience(CANARY_LEAST, CANARY)
        hops = await self._bisector.bisect(failed, reused=reused, bound=bound)
        return Surroundings(watched=watched, hops=hops, usual=self.usual)

    def patience(self, least: float, most: float) -> float:
        """Seconds for a canary: some times what is usual, within limits, and no more than any answer may take."""
        wanted = most if self.usual is None else min(most, max(least, PATIENCE * self.usual))
        return min(wanted, self._longest)

    def note(self, seconds: float) -> None:
        """Remember how long a small answer took, whole, for what is usual."""
        self._small.append(seconds)

    @property
    def usual(self) -> float | None:
        """Seconds that a small answer took lately, in the middle; None before there was one."""
        return statistics.median(self._small) if self._small else None

    def _problem(self, path: str, answer: Answer) -> str:
        if answer.ok:
            # What stands in for a service that is down (a captive portal, a default site) likes to answer 200.
            html = "html" in (answer.exchange.header("content-type") or "").lower()
            return f"{path} is {answer.shown()}" if html else ""
        if answer.exchange.outcome is Outcome.REFUSED:
            return f"{answer.status} from {path}: {answer.shown()}"
        return f"{path}: {self._credential.mask(answer.reason)}"
