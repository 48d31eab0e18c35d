"""The loop thread: bounded for its callers, whatever happens on it."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from pytest_pdserve.wire import LoopThread, loop

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCKED = 0.4


@pytest.fixture(params=["uvloop", "asyncio"])
def thread(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopThread]:
    if request.param == "asyncio":
        monkeypatch.setattr(loop, "_new_loop", asyncio.new_event_loop)
    thread = LoopThread()
    yield thread
    thread.close()
    assert not thread._thread.is_alive()


async def kind_of_loop() -> str:
    return type(asyncio.get_running_loop()).__module__


def test_uvloop_is_used_where_it_is_there() -> None:
    thread = LoopThread()
    assert thread.run(kind_of_loop, bound=5).startswith("uvloop")
    thread.close()


def test_without_uvloop_it_is_asyncio_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop.importlib.util, "find_spec", lambda _name: None)
    thread = LoopThread()
    assert thread.run(kind_of_loop, bound=5).startswith("asyncio")
    thread.close()


def test_run_gives_back_what_the_coroutine_does(thread: LoopThread) -> None:
    async def add(one: int, other: int) -> int:
        await asyncio.sleep(0)
        return one + other

    assert thread.run(add, 2, 3, bound=5) == 5


def test_run_raises_what_the_coroutine_does(thread: LoopThread) -> None:
    async def fail(error: BaseException) -> None:
        raise error

    with pytest.raises(KeyError, match="x"):
        thread.run(fail, KeyError("x"), bound=5)
    with pytest.raises(TimeoutError, match="its own"):
        thread.run(fail, TimeoutError("its own"), bound=5)


def test_a_bound_that_passes_is_a_time_out_and_cancels(thread: LoopThread) -> None:
    ended = threading.Event()

    async def never() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    with pytest.raises(TimeoutError, match=r"nothing came back from the event loop in 0\.1 s"):
        thread.run(never, bound=0.1)
    assert ended.wait(5)


class Unwound(BaseException):
    """What a signal's handler raises in these tests."""


def test_a_signal_that_unwinds_the_caller_cancels_only_its_coroutine(thread: LoopThread) -> None:
    ended: list[str] = []
    began = threading.Event()

    async def wait(name: str) -> str:
        began.set()
        try:
            await asyncio.sleep(0.5 if name == "other" else 60)
        except asyncio.CancelledError:
            ended.append(name)
            raise
        return name

    others: list[str] = []
    other = threading.Thread(target=lambda: others.append(thread.run(wait, "other", bound=20)))
    other.start()
    assert began.wait(5)

    def unwind(_number: int, _frame: object) -> None:
        raise Unwound

    before = signal.signal(signal.SIGALRM, unwind)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(Unwound):
            thread.run(wait, "unwound", bound=20)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    other.join(20)
    assert others == ["other"]
    assert ended == ["unwound"]


def block(thread: LoopThread, seconds: float) -> threading.Thread:
    """Block the loop from another thread; returns when it is blocked."""
    blocked = threading.Event()

    async def sleep_in_the_loop() -> None:
        blocked.set()
        time.sleep(seconds)  # noqa: ASYNC251 -- what must never happen, on purpose

    caller = threading.Thread(target=lambda: thread.run(sleep_in_the_loop, bound=20))
    caller.start()
    assert blocked.wait(5)
    return caller


def test_a_blocked_loop_does_not_block_whoever_gives_up(thread: LoopThread) -> None:
    blocked, release = threading.Event(), threading.Event()
    released_in_time: list[bool] = []

    async def hold_the_loop() -> None:
        blocked.set()
        released_in_time.append(release.wait(5))

    async def never() -> None:
        await asyncio.sleep(60)

    caller = threading.Thread(target=lambda: thread.run(hold_the_loop, bound=20))
    caller.start()
    assert blocked.wait(5)
    with pytest.raises(TimeoutError):
        thread.run(never, bound=0.1)
    release.set()
    caller.join(20)
    assert released_in_time == [True]


def test_an_idle_loop_is_never_late(thread: LoopThread) -> None:
    def lag() -> float:
        since = time.monotonic()
        time.sleep(0.1)
        return thread.lag(since)

    # The best of several: the machine may be busy, the loop isn't.
    assert min(lag() for _ in range(5)) < 0.02


def test_lag_sees_a_loop_that_was_blocked(thread: LoopThread) -> None:
    since = time.monotonic()
    block(thread, BLOCKED).join(20)
    after = time.monotonic()
    time.sleep(0.1)
    until = time.monotonic()
    assert BLOCKED - loop.BEAT - loop.GRAIN <= thread.lag(since, until) < BLOCKED + 1
    assert thread.lag(since) >= BLOCKED - loop.BEAT - loop.GRAIN
    assert thread.lag(since - 10, since - 5) == 0
    assert thread.lag(after + 0.05, until) < thread.lag(since, until)


def test_lag_sees_a_loop_that_is_blocked_right_now(thread: LoopThread) -> None:
    since = time.monotonic()
    caller = block(thread, BLOCKED)
    time.sleep(BLOCKED / 2)
    assert thread.lag(since) > BLOCKED / 4
    assert thread.lag(since - 10, since - 5) == 0
    caller.join(20)


def test_only_late_beats_are_kept(thread: LoopThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "GRAIN", 60.0)
    time.sleep(0.1)
    thread._late.clear()
    time.sleep(0.1)
    assert not thread._late


def test_close_twice_and_then_run(thread: LoopThread) -> None:
    thread.close()
    thread.close()
    with pytest.raises(RuntimeError, match="closed"):
        thread.run(kind_of_loop, bound=1)


def test_close_cancels_what_runs() -> None:
    thread = LoopThread()
    ended = threading.Event()
    began = threading.Event()
    raised: list[BaseException] = []

    async def never() -> None:
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    def call() -> None:
        try:
            thread.run(never, bound=20)
        except BaseException as error:  # noqa: BLE001 -- looked at below
            raised.append(error)

    caller = threading.Thread(target=call)
    caller.start()
    assert began.wait(5)
    thread.close()
    assert ended.is_set()
    caller.join(5)
    assert not caller.is_alive()
    assert "Cancelled" in type(raised[0]).__name__


STUBBORN = """
import asyncio, threading, time
from pytest_pdserve.wire import LoopThread, loop
loop.CLOSING = 0.5
began = threading.Event()

async def stubborn():
    while True:
        began.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass

thread = LoopThread()
threading.Thread(target=lambda: thread.run(stubborn, bound=100), daemon=True).start()
began.wait(5)
start = time.monotonic()
thread.close()
print("closed", time.monotonic() - start < 5)
"""


def test_close_and_the_interpreter_s_end_are_bounded_for_a_coroutine_that_won_t_be_cancelled() -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", STUBBORN],
        capture_output=True,
        timeout=30,
        check=False,
        text=True,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "closed True\n", "")


def test_a_finished_process_needs_no_close() -> None:
    program = "from pytest_pdserve.wire import LoopThread; LoopThread(); print('end')"
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        timeout=30,
        check=False,
        text=True,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "end\n", "")
