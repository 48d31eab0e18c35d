"""The one event-loop thread on which all input and output runs, watched for its own lateness."""

from __future__ import annotations

import asyncio
import concurrent.futures
import importlib.util
import threading
import time
from collections import deque
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, TypeVar

from anyio.from_thread import start_blocking_portal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

BEAT: Final = 0.02
"""Seconds between two looks at the loop's own lateness."""
BEATS_KEPT: Final = 100_000
CLOSING: Final = 5.0


class LoopThread:
    """Runs coroutines for synchronous callers, so that whatever unwinds a caller (a time-out's signal, Ctrl-C)
    leaves the loop alone: the caller's coroutine is cancelled, everything else goes on.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._portal = self._stack.enter_context(
            start_blocking_portal("asyncio", backend_options={"use_uvloop": _has_uvloop()})
        )
        self._lateness: deque[tuple[float, float]] = deque(maxlen=BEATS_KEPT)
        self._portal.start_task_soon(self._beat)

    def run(self, function: Callable[..., Awaitable[T]], *args: Any, bound: float) -> T:
        """Await `function(*args)` on the loop, for at most `bound` seconds.

        Raises TimeoutError when the bound passes. `bound` is a backstop: a coroutine has its own deadlines.
        """
        future: concurrent.futures.Future[T] = self._portal.start_task_soon(function, *args)
        try:
            return future.result(bound)
        except concurrent.futures.TimeoutError:
            if future.done():
                raise
            raise TimeoutError(f"nothing came back from the event loop in {bound:g} s") from None
        finally:
            future.cancel()

    def lag(self, since: float, until: float | None = None) -> float:
        """The longest that the loop was late between two moments of the monotonic clock, in seconds.

        A loop that is late right now counts too. Values below a hundredth of a second are the timer's grain.
        """
        until = time.monotonic() if until is None else until
        beats = list(self._lateness)
        worst = max((late for at, late in beats if at >= since and at - late <= until), default=0.0)
        pending = (
            min(until, time.monotonic()) - beats[-1][0] - BEAT if beats and until >= beats[-1][0] else 0.0
        )
        return max(worst, pending, 0.0)

    def close(self) -> None:
        """Cancel what still runs and end the thread; a thread that doesn't end in 5 s is left behind (a daemon)."""
        self._portal.start_task_soon(self._portal.stop, True)
        closer = threading.Thread(target=self._stack.close, name="pdserve-close", daemon=True)
        closer.start()
        closer.join(CLOSING)

    async def _beat(self) -> None:
        while True:
            due = time.monotonic() + BEAT
            await asyncio.sleep(BEAT)
            now = time.monotonic()
            self._lateness.append((now, now - due))


def _has_uvloop() -> bool:
    return importlib.util.find_spec("uvloop") is not None
