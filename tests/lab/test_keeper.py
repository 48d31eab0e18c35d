"""Setting up, starting and stopping, with a small HTTP server for a deployment."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.lab import folders, keeper
from tests.lab.deployment import Service, StartError, running
from tests.lab.environment import SetupError, prepare
from tests.lab.lane import Lane

SERVER = """
import http.server, sys
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"ready")
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""
FAILS_ONCE = """
import pathlib, sys
tried = pathlib.Path(sys.argv[2], "tried")
if not tried.exists():
    tried.touch()
    sys.exit("no luck today")
"""
FAILS = "raise SystemExit('no luck ever')"


def free_port() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return int(trial.getsockname()[1])


class SmallLane(Lane):
    """One or two servers; `code` is what the last of them runs."""

    name = "small"
    isolated = False
    checks = ""
    ports: Mapping[str, int]

    def __init__(self, folder: Path, code: str = SERVER) -> None:
        self.ports = {"first": free_port(), "second": free_port()}
        self.codes = {"first": SERVER, "second": code}
        self.folder = folder

    def prepare(self, folder: Path) -> bool:
        return False

    def waves(self, folder: Path, work: Path) -> Sequence[Sequence[Service]]:
        return [[self.service(name, code)] for name, code in self.codes.items()]

    def service(self, name: str, code: str) -> Service:
        command = (sys.executable, "-c", code, str(self.ports[name]), str(self.folder))
        return Service(name, command, self.ports[name], answer=b"ready", limit=20.0)

    def listening(self) -> set[str]:
        found = set()
        for name, port in self.ports.items():
            with socket.socket() as trial:
                if trial.connect_ex(("127.0.0.1", port)) == 0:
                    found.add(name)
        return found


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(folders, "build", lambda lane: tmp_path / "build" / lane)
    monkeypatch.setenv("PDSERVE_LAB_CACHE", str(tmp_path / "cache"))
    before = {number: signal.getsignal(number) for number in keeper.ENDING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_services_are_up_inside_and_gone_outside(tmp_path: Path) -> None:
    lane = SmallLane(tmp_path)
    with keeper.kept(lane) as services:
        assert [one.service.name for one in services] == ["first", "second"]
        assert lane.listening() == {"first", "second"}
        assert (tmp_path / "build/small/deployment.json").exists()

    assert not lane.listening()
    assert not (tmp_path / "build/small/deployment.json").exists()


def test_failed_start_is_tried_once_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lane = SmallLane(tmp_path, FAILS_ONCE + SERVER)
    with keeper.kept(lane):
        assert lane.listening() == {"first", "second"}

    shown = capsys.readouterr().out
    assert "second ended with status 1" in shown
    assert "| no luck today" in shown
    assert "starting once more" in shown
    assert "no luck today" in (tmp_path / "build/small/start-1/second.log").read_text()


def test_second_failure_ends_it_and_what_had_started(tmp_path: Path) -> None:
    lane = SmallLane(tmp_path, FAILS)
    with pytest.raises(StartError, match="no luck ever"), keeper.kept(lane):
        pytest.fail("started")

    assert not lane.listening()


def test_silent_service_is_given_up(tmp_path: Path) -> None:
    command = (sys.executable, "-c", "import time; time.sleep(600)")
    silent = Service("silent", command, free_port(), limit=0.3)
    with (
        pytest.raises(StartError, match=r"silent not ready after 0\.3 s"),
        running([[silent]], tmp_path, os.environ),
    ):
        pytest.fail("started")


def test_taken_port_is_named(tmp_path: Path) -> None:
    lane = SmallLane(tmp_path)
    with socket.socket() as other:
        other.bind(("127.0.0.1", lane.ports["second"]))
        other.listen()
        with (
            pytest.raises(keeper.BusyError, match=rf"port {lane.ports['second']} \(second\)"),
            keeper.kept(lane),
        ):
            pytest.fail("started")


def test_second_keeper_is_told_how_to_stop_the_first(tmp_path: Path) -> None:
    with (
        keeper.kept(SmallLane(tmp_path)),
        pytest.raises(keeper.BusyError, match=r"`python -m tests\.lab small down` stops it"),
        keeper.kept(SmallLane(tmp_path)),
    ):
        pytest.fail("started twice")


def test_down_ends_another_process_s_deployment(tmp_path: Path) -> None:
    lane = SmallLane(tmp_path)
    up = f"""
import pathlib
from tests.lab import folders, keeper
from tests.lab.test_keeper import SmallLane
folders.build = lambda lane: pathlib.Path({str(tmp_path)!r}, "build", lane)
lane = SmallLane(pathlib.Path({str(tmp_path)!r}))
lane.ports = {lane.ports!r}
raise SystemExit(keeper.up(lane))
"""
    with subprocess.Popen(
        [sys.executable, "-c", up], cwd=folders.CHECKOUT, stdout=subprocess.DEVNULL
    ) as process:
        try:
            deadline = time.monotonic() + 20
            while not (tmp_path / "build/small/deployment.json").exists():
                assert time.monotonic() < deadline
                time.sleep(0.02)
            keeper.down(lane)

            assert not lane.listening()
            assert process.wait(20) == 128 + signal.SIGTERM
        finally:
            process.kill()


def test_down_with_nothing_up_does_nothing(tmp_path: Path) -> None:
    lane = SmallLane(tmp_path)
    keeper.down(lane)
    with keeper.kept(lane):
        pass
    keeper.down(lane)  # the lock file is there, its writer is us


def test_environment_is_made_once_and_anew_for_other_pins(tmp_path: Path) -> None:
    folder = tmp_path / "environment"
    step = (sys.executable, "-c", "open('made', 'x')")

    assert prepare(folder, ["a==1"], [step], os.environ)
    assert not prepare(folder, ["a==1"], [step], os.environ)
    (folder / "old").touch()
    assert prepare(folder, ["a==2"], [step], os.environ)
    assert (folder / "made").exists()
    assert not (folder / "old").exists()


def test_failed_set_up_shows_its_log_and_starts_from_nothing_next_time(tmp_path: Path) -> None:
    folder = tmp_path / "environment"
    with pytest.raises(SetupError, match=r"(?s)status 1.*\| no disk"):
        prepare(folder, ["a==1"], [(sys.executable, "-c", "raise SystemExit('no disk')")], os.environ)
    assert prepare(folder, ["a==1"], [(sys.executable, "-c", "")], os.environ)
