"""Nothing that runs on a leash survives it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.folders import CHECKOUT
from tests.lab.processes import Leashed, descendants

LONG = 600
FAMILY = f"""
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN) if "deaf" in sys.argv else None
sleeper = [sys.executable, "-c", "import time; time.sleep({LONG})"]
away = subprocess.Popen(sleeper, start_new_session=True)
stopped = subprocess.Popen(sleeper)
os.kill(stopped.pid, signal.SIGSTOP)
print(os.getpid(), away.pid, stopped.pid, flush=True)
time.sleep({LONG} if "stay" in sys.argv else 0)
sys.exit(3)
"""


def alive(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


def wait_for_end(pids: list[int]) -> None:
    deadline = time.monotonic() + 20
    while any(map(alive, pids)):
        assert time.monotonic() < deadline, "something survived"
        time.sleep(0.02)


def read_family(file: Path) -> list[int]:
    deadline = time.monotonic() + 20
    while not file.read_text().endswith("\n"):
        assert time.monotonic() < deadline, "the family did not start"
        time.sleep(0.02)
    return [int(word) for word in file.read_text().split()]


@pytest.fixture
def family(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Leashed, list[int]]]:
    """A leashed process with a child in a session of its own and one that is stopped; all their ids."""
    with (tmp_path / "out").open("wb") as out:
        leashed = Leashed([sys.executable, "-c", FAMILY, *request.param], os.environ, tmp_path, out)
    pids = read_family(tmp_path / "out")
    try:
        yield leashed, pids
    finally:
        for pid in filter(alive, pids):
            os.kill(pid, signal.SIGKILL)
        leashed.end()


@pytest.mark.parametrize("family", [["stay"]], indirect=True)
def test_letting_go_ends_children_that_left_and_stopped_ones(family: tuple[Leashed, list[int]]) -> None:
    leashed, pids = family
    assert all(map(alive, pids))
    assert leashed.status() is None

    leashed.end()

    assert not any(map(alive, pids))
    assert leashed.status() == 128 + signal.SIGTERM


@pytest.mark.parametrize("family", [[]], indirect=True)
def test_what_a_command_leaves_behind_ends_with_it(family: tuple[Leashed, list[int]]) -> None:
    leashed, pids = family

    assert leashed.wait(20) == 3
    assert not any(map(alive, pids))


def test_command_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    impatient = f"""
import sys
from tests.lab import leash
leash.GRACE = 0.2
sys.exit(leash.main([sys.executable, "-c", {FAMILY!r}, "deaf", "stay"]))
"""
    with (tmp_path / "out").open("wb") as out:
        leashed = subprocess.Popen(
            [sys.executable, "-c", impatient], cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=out
        )
    pids = read_family(tmp_path / "out")

    leashed.communicate(timeout=20)

    assert leashed.returncode == 128 + signal.SIGKILL
    assert not any(map(alive, pids))


def test_killed_holder_takes_everything_along(tmp_path: Path) -> None:
    holder = f"""
import os, pathlib, sys, time
from tests.lab.processes import Leashed
out = open({str(tmp_path / "out")!r}, "wb")
Leashed([sys.executable, "-c", {FAMILY!r}, "stay"], os.environ, pathlib.Path({str(tmp_path)!r}), out)
time.sleep({LONG})
"""
    (tmp_path / "out").touch()
    with subprocess.Popen([sys.executable, "-c", holder], cwd=CHECKOUT) as process:
        pids = read_family(tmp_path / "out")
        pids += [pid for pid, _ in descendants(process.pid)]
        process.kill()

    assert len(set(pids)) == 4
    wait_for_end(pids)
