"""What a router thinks of its workers: circuit breakers and health checks, as sglang-router 0.3.2 keeps them."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from pytest_pdserve.sim.plan import Service

FAILURES: Final = 10
"""Failures in a row that open a breaker by default."""
OPEN_S: Final = 60.0
"""How long it stays open by default; then the next request decides."""
CHECK_S: Final = 60.0
"""The default pause between health checks."""
CHECK_FAILURES: Final = 3


@dataclass(slots=True)
class _State:
    failures: int = 0
    opened: float | None = None
    missed: int = 0


class Wellness:
    """The state of every worker of one router. Times are scaled as all simulated ones."""

    def __init__(self, workers: Sequence[Service], scale: float) -> None:
        self._states = {worker.name: _State() for worker in workers}
        self._scale = scale

    def record(self, workers: Sequence[Service], *, failed: bool, most: int = FAILURES) -> None:
        """Count one dispatch for all workers that took part: the router doesn't tell whose failure it was."""
        for worker in workers:
            state = self._states[worker.name]
            state.failures = state.failures + 1 if failed else 0
            state.opened = time.monotonic() if failed and state.failures >= most else None

    def available(self, worker: Service) -> bool:
        """Whether requests go to it: its breaker is closed, or due for a trial, and its health checks passed."""
        state = self._states[worker.name]
        tripped = state.opened is not None and time.monotonic() - state.opened < OPEN_S * self._scale
        return not tripped and self.healthy(worker)

    def healthy(self, worker: Service) -> bool:
        """Whether its health checks passed, which know nothing of breakers."""
        return self._states[worker.name].missed < CHECK_FAILURES

    async def check(self, workers: Sequence[Service], well: Callable[[Service], Awaitable[bool]]) -> None:
        """Check every worker for ever."""
        while True:
            await asyncio.sleep(CHECK_S * self._scale)
            for worker, fine in zip(workers, await asyncio.gather(*map(well, workers)), strict=True):
                state = self._states[worker.name]
                state.missed = 0 if fine else state.missed + 1
