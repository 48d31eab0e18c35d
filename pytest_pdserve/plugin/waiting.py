"""Waiting until a deployment that starts is ready, before anything is probed."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pytest_pdserve.observe import Observer
from pytest_pdserve.target import TargetError, resolve
from pytest_pdserve.units import count, seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx

    from pytest_pdserve.settings import Settings
    from pytest_pdserve.target import Target

PAUSE: Final = 0.5
SLOWER: Final = 1.5
LONGEST_PAUSE: Final = 5.0
"""Seconds between two looks at a service: from half a second, half as much again each time, up to five."""
LAST: Final = 0.05
"""Seconds of the limit with which no other look is worth while."""
SILENCE: Final = 10.0
"""Seconds after which a line says that the wait goes on."""


@dataclass(slots=True)
class Wait:
    """One wait: what became ready when, in lines for people."""

    say: Callable[[str], None]
    limit: float
    lines: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    _told: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> float:
        """Seconds of the limit that are left."""
        return self.limit - (time.monotonic() - self.began)

    async def until_ready(self, settings: Settings, http: httpx.AsyncClient) -> Target:
        """Resolve the target as soon as its entry answers, then wait for every service; returns in any case in time.

        Raises TargetError for what waiting doesn't mend, and for what it did not.
        """
        target = await self._resolved(settings, http)
        if target.unreachable is None:
            observer = Observer(target, http, settings.credential)
            waiting = (self._ready(observer, index) for index in range(len(target.services)))
            await asyncio.gather(*waiting)
            # What a service offers may have changed since the first look, such as its model.
            target = await resolve(settings, http)
        return target

    async def _resolved(self, settings: Settings, http: httpx.AsyncClient) -> Target:
        pause, attempt = PAUSE, 0
        while True:
            attempt += 1
            target, problem = None, None
            try:
                target = await resolve(settings, http)
                why = target.unreachable
            except TargetError as error:
                why, problem = str(error), error
            if why is None and target is not None:
                self._note(f"the entry answers after {self._passed()}, {count(attempt, 'poll')}")
                return target
            if self.left <= LAST:
                self._note(
                    f"the entry does not answer after {self._passed()}, {count(attempt, 'poll')}: {why}"
                )
                if target is None:
                    raise problem or TargetError(str(why))
                return target
            self._still(f"the entry: {why}")
            await asyncio.sleep(min(pause, self.left))
            pause = min(pause * SLOWER, LONGEST_PAUSE)

    async def _ready(self, observer: Observer, index: int) -> None:
        service, pause = observer.services[index], PAUSE
        polls = 0
        while True:
            state = await observer.state(service, deadline=max(min(self.left, LONGEST_PAUSE), 0.1))
            polls += 1
            if state.ready:
                self._note(f"{service.name} ready after {self._passed()}, {count(polls, 'poll')}")
                return
            if self.left <= LAST:
                self._note(
                    f"{service.name} not ready after {self._passed()}, {count(polls, 'poll')}: {state.problem}"
                )
                return
            self._still(f"{service.name}: {state.problem}")
            await asyncio.sleep(min(pause, self.left))
            pause = min(pause * SLOWER, LONGEST_PAUSE)

    def _passed(self) -> str:
        return seconds(time.monotonic() - self.began)

    def _note(self, line: str) -> None:
        self.lines.append(line)
        self._told = time.monotonic()
        self.say(line)

    def _still(self, what: str) -> None:
        if time.monotonic() - self._told >= SILENCE:
            self._told = time.monotonic()
            self.say(f"still waiting after {self._passed()} for {what}")
