"""The one event-loop thread on which all input and output runs, watched for its own lateness."""

from __future__ import annotations

import asyncio
import importlib.util
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

BEAT: Final = 0.02
"""Seconds between two looks at the loop's own lateness."""
GRAIN: Final = 0.01
"""Seconds; less than this is the timer's and the scheduler's grain, and no lateness."""
LATE_KEPT: Final = 100_000
"""How many late beats are remembered; more than half an hour of a loop that is never in time."""
CLOSING: Final = 5.0
"""Seconds that `close` waits for the thread."""


class LoopThread:
    """Runs coroutines for synchronous callers, so that whatever unwinds a caller (a time-out's signal, Ctrl-C)
    leaves the loop alone: the caller's coroutine is cancelled, everything else goes on.

    No call into it waits for the loop without a bound, also while something blocks the loop.
    """

    def __init__(self) -> None:
        self._loop = _new_loop()
        self._stop = asyncio.Event()
        self._closed = False
        self._last_beat = time.monotonic()
        self._late: deque[tuple[float, float]] = deque(maxlen=LATE_KEPT)
        """When each late beat came, and by how many seconds it was late."""
        self._thread = threading.Thread(target=self._serve, name="pdserve-loop", daemon=True)
        self._thread.start()

    def run(self, function: Callable[..., Awaitable[T]], *args: Any, bound: float) -> T:
        """Await `function(*args)` on the loop, for at most `bound` seconds.

        Raises TimeoutError when the bound passes, and RuntimeError after `close`. `bound` is a backstop: a
        coroutine has its own deadlines.
        """
        if self._closed:
            raise RuntimeError("the event-loop thread is closed")
        future = asyncio.run_coroutine_threadsafe(_called(function, args), self._loop)
        try:
            return future.result(bound)
        except TimeoutError:
            if future.done():
                raise
            raise TimeoutError(f"nothing came back from the event loop in {bound:g} s") from None
        finally:
            future.cancel()

    def lag(self, since: float, until: float | None = None) -> float:
        """The longest that the loop was late between two moments of the monotonic clock, in seconds.

        A loop that is late right now counts too. Lateness below `GRAIN` is 0.
        """
        until = time.monotonic() if until is None else until
        worst = max((late for at, late in tuple(self._late) if at >= since and at - late <= until), default=0)
        due = self._last_beat + BEAT
        pending = min(until, time.monotonic()) - due
        return max(worst, pending if pending > GRAIN else 0.0)

    def close(self) -> None:
        """Cancel what still runs and end the thread; a thread that doesn't end in 5 s is left behind (a daemon)."""
        if not self._closed:
            self._closed = True
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(CLOSING)

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._beat_until_stopped())

    async def _beat_until_stopped(self) -> None:
        beating = asyncio.create_task(self._beat())
        await self._stop.wait()
        beating.cancel()

    async def _beat(self) -> None:
        while True:
            due = time.monotonic() + BEAT
            await asyncio.sleep(BEAT)
            now = time.monotonic()
            if now - due > GRAIN:
                self._late.append((now, now - due))
            self._last_beat = now


async def _called(function: Callable[..., Awaitable[T]], args: tuple[Any, ...]) -> T:
    return await function(*args)


def _new_loop() -> asyncio.AbstractEventLoop:
    if importlib.util.find_spec("uvloop") is None:
        return asyncio.new_event_loop()
    import uvloop  # not on every platform

    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
