"""Set up, start, check and stop a lane. Whoever starts a deployment keeps it: it ends with its keeper."""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TextIO

from tests.lab import folders
from tests.lab.deployment import Running, StartError, describe, running
from tests.lab.lane import Lane, taken
from tests.lab.network import isolate
from tests.lab.processes import Leashed

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
CHECKS_LIMIT = 1800.0
"""Seconds that a lane's checks may take altogether."""
DOWN_LIMIT = 90.0
"""Seconds within which a keeper that was told to end has ended."""
SETUP_WAIT = 3600.0
"""Seconds to wait for someone else's set-up of the same lane."""


class BusyError(Exception):
    """Somebody else holds what this command needs: a port, a deployment, a set-up."""


def setup(lane: Lane) -> None:
    """Make the lane's environment ready to start, one process at a time."""
    folder = folders.cache(lane.name)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_suffix(".lock"), SETUP_WAIT, f"another set-up of {folder} goes on"):
        done = lane.prepare(folder)
    print(f"lab: {lane.name} {'set up' if done else 'is set up'} in {folder}", flush=True)


def up(lane: Lane) -> int:
    """Start the lane, keep it up until told to end or until a service ends; return an exit status."""
    with kept(lane) as services:
        print(
            f"lab: {lane.name} is up. Ctrl-C, or `python -m tests.lab {lane.name} down`, stops it.",
            flush=True,
        )
        if lane.isolated:
            print(f"lab: it has its own network: nsenter --net --target {os.getpid()} COMMAND", flush=True)
        while not (ended := "\n".join(filter(None, (one.ended() for one in services)))):
            time.sleep(1)
        print(f"lab: {ended}", flush=True)
        return 1


def run(lane: Lane, arguments: Sequence[str]) -> int:
    """Start the lane, run its checks (`arguments` go to pytest), stop it; return pytest's exit status."""
    work = folders.build(lane.name)
    with kept(lane) as services:
        command = (sys.executable, "-m", "pytest", f"tests/lab/{lane.checks}", "-s", "-p", "no:cacheprovider")
        where = (f"--basetemp={work / 'checks'}", f"--junit-xml={work / 'checks.xml'}")
        checks = Leashed((*command, *where, *arguments), os.environ, folders.CHECKOUT)
        try:
            return checks.wait(CHECKS_LIMIT)
        except subprocess.TimeoutExpired:
            print(f"lab: the checks were not done after {CHECKS_LIMIT:.0f} s", flush=True)
            return 1
        finally:
            checks.end()
            for ended in filter(None, (one.ended() for one in services)):
                print(f"lab: {ended}", flush=True)


def down(lane: Lane) -> None:
    """Have the checkout's running deployment of this lane stopped, if there is one, and wait until it is."""
    lock = _lock_file(lane)
    if not lock.exists():
        return
    with lock.open("a+") as file:
        if _lock(file):
            return
        keeper = int(lock.read_text())
        os.kill(keeper, signal.SIGTERM)
        deadline = time.monotonic() + DOWN_LIMIT
        while not _lock(file):
            if time.monotonic() > deadline:
                # what it kept is on leashes, and ends with it
                os.kill(keeper, signal.SIGKILL)
                return
            time.sleep(0.5)


@contextlib.contextmanager
def kept(lane: Lane) -> Iterator[list[Running]]:
    """Set up and start the lane, with a second try; end it on the way out, whichever way that is."""
    _end_on_signals()
    setup(lane)
    folder, work = folders.cache(lane.name), folders.build(lane.name)
    work.mkdir(parents=True, exist_ok=True)
    with _locked(
        _lock_file(lane), 0.0, f"{lane.name} is up already; `python -m tests.lab {lane.name} down` stops it"
    ):
        if lane.isolated:
            isolate()
        if busy := taken(lane.ports):
            raise BusyError(
                "taken by another process: "
                + ", ".join(f"port {port} ({name})" for name, port in busy.items())
            )
        with contextlib.ExitStack() as stack:
            services = _started(lane, folder, work, stack)
            lane.tune(services)
            (work / "deployment.json").write_text(describe(services))
            stack.callback((work / "deployment.json").unlink)
            stack.callback(print, f"lab: stopping {lane.name}; logs are in {work}", flush=True)
            yield services


def _started(lane: Lane, folder: Path, work: Path, stack: contextlib.ExitStack) -> list[Running]:
    for old in work.glob("start-*"):
        shutil.rmtree(old)
    try:
        return stack.enter_context(_start(lane, folder, work / "start-1"))
    except StartError as failed:
        print(f"lab: {failed}\nlab: starting once more", flush=True)
    return stack.enter_context(_start(lane, folder, work / "start-2"))


def _start(lane: Lane, folder: Path, logs: Path) -> contextlib.AbstractContextManager[list[Running]]:
    scratch = logs / "scratch"
    scratch.mkdir(parents=True)
    return running(lane.waves(folder, scratch), logs, os.environ)


def _end_on_signals() -> None:
    def end(number: int, _: FrameType | None) -> None:
        for further in ENDING:
            signal.signal(further, signal.SIG_IGN)  # a second one must not cut the clean-up short
        sys.exit(128 + number)

    for number in ENDING:
        signal.signal(number, end)


def _lock_file(lane: Lane) -> Path:
    return folders.build(lane.name) / "keeper"


@contextlib.contextmanager
def _locked(path: Path, seconds: float, busy: str) -> Iterator[None]:
    """Hold the lock at `path`, our process id in it; raises BusyError(`busy`) when it isn't free in time."""
    deadline = time.monotonic() + seconds
    with path.open("a+") as file:
        while not _lock(file):
            if time.monotonic() > deadline:
                raise BusyError(busy)
            time.sleep(1)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _lock(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
