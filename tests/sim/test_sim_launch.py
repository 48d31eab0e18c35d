"""Starting, stopping, and leaving nothing behind."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from simclient import call, chat, copying, eventually, gauge

from pytest_pdserve.sim.launch import SimError, Simulation, start
from pytest_pdserve.sim.plan import Timing

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PRINT_PIDS = "print(*s.pids.values(), s.entry, flush=True)"


def alive(pid: int) -> bool:
    """Whether a process exists and is more than a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/status")
    return not status.exists() or "State:\tZ" not in status.read_text()


def listening(url: str) -> bool:
    address = urlsplit(url)
    try:
        socket.create_connection((address.hostname, address.port), timeout=1).close()
    except ConnectionRefusedError:
        return False
    return True


def all_gone(pids: list[int], url: str) -> bool:
    return eventually(lambda: not any(map(alive, pids)) and not listening(url))


@contextmanager
def python(
    *arguments: str, stdin: int | None = None, stderr: int | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A Python process of its own in the checkout; it is gone afterwards, whatever happens."""
    process = subprocess.Popen(
        [sys.executable, *arguments], cwd=ROOT, stdout=subprocess.PIPE, stdin=stdin, stderr=stderr
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def printed(process: subprocess.Popen[bytes], lines: int = 1) -> list[str]:
    """The next lines it prints."""
    assert process.stdout is not None
    text = b""
    while text.count(b"\n") < lines:
        assert select.select([process.stdout], [], [], 30)[0], "nothing printed in 30 s"
        piece = os.read(process.stdout.fileno(), 65536)
        assert piece, "it ended before printing that much"
        text += piece
    return text.decode().splitlines()


def pids_and_url(process: subprocess.Popen[bytes]) -> tuple[list[int], str]:
    *pids, url = printed(process)[0].split()
    return [int(pid) for pid in pids], url


def test_it_is_ready_soon_and_leaves_nothing() -> None:
    began = time.monotonic()
    with start() as sim:
        seconds = time.monotonic() - began
        pids, urls = list(sim.pids.values()), (sim.entry, *sim.prefill, *sim.decode)
        assert set(sim.pids) == {"router", "prefill-0", "decode-0"}
        assert chat(sim.entry, *copying("31")).text == "31"
    assert seconds < 15  # 0.6 s on two idle cores; the bound only catches a hang
    assert not any(map(alive, pids))
    assert not any(map(listening, urls))
    sim.stop()


def test_an_exception_ends_it() -> None:
    sim = start()
    with pytest.raises(RuntimeError), sim:
        raise RuntimeError
    assert all_gone(list(sim.pids.values()), sim.entry)


def test_it_outlives_the_thread_that_started_it() -> None:
    found: list[Simulation] = []
    thread = threading.Thread(target=lambda: found.append(start()))
    thread.start()
    thread.join(30)
    with found[0] as sim:
        time.sleep(0.3)
        assert chat(sim.entry, *copying("32")).text == "32"


START = f"from pytest_pdserve.sim.launch import start; s = start(); {PRINT_PIDS}"


def test_kill_9_of_the_parent_ends_everything_even_a_stopped_worker() -> None:
    with python("-c", f"{START}; input()", stdin=subprocess.PIPE) as parent:
        pids, url = pids_and_url(parent)
        os.kill(pids[-1], signal.SIGSTOP)
        parent.kill()
        assert all_gone(pids, url)


def test_kill_9_of_the_warden_ends_everything_even_a_stopped_worker() -> None:
    with start() as sim:
        os.kill(sim.pids["decode-0"], signal.SIGSTOP)
        os.kill(os.getpgid(sim.pids["router"]), signal.SIGKILL)
        assert all_gone(list(sim.pids.values()), sim.entry)


def test_a_parent_that_forgets_to_stop_it_leaves_nothing() -> None:
    with python("-c", START) as parent:
        pids, url = pids_and_url(parent)
        assert parent.wait(20) == 0
        assert all_gone(pids, url)


def test_ctrl_c_in_a_script_leaves_nothing() -> None:
    code = "import time\nfrom pytest_pdserve.sim.launch import start\n"
    code += f"with start() as s:\n {PRINT_PIDS}\n time.sleep(60)"
    with python("-c", code, stderr=subprocess.DEVNULL) as parent:
        pids, url = pids_and_url(parent)
        parent.send_signal(signal.SIGINT)
        assert parent.wait(20) != 0
        assert all_gone(pids, url)


def test_every_pair_gets_its_turn() -> None:
    with start(prefill=2, decode=2) as sim:
        for _ in range(8):
            assert chat(sim.entry, *copying("33")).text == "33"
        for url in (*sim.prefill, *sim.decode):
            done = [
                row
                for row in call(url, "/metrics").body.decode().splitlines()
                if row.startswith("sglang:num_requests_total")
            ]
            assert done[0].endswith(" 4.0")


def test_a_dead_decode_is_a_502_that_names_it_and_the_rest_lives_on() -> None:
    with start(timing=Timing(bootstrap_timeout_s=0.2)) as sim:
        os.kill(sim.pids["decode-0"], signal.SIGKILL)
        answer = chat(sim.entry, "hello")
        assert answer.status == 502
        assert answer.json["error"] == {
            "type": "Bad Gateway",
            "code": "decode_server_error",
            "message": f"Decode server error: error sending request for url ({sim.decode[0]}/v1/chat/completions)",
        }
        assert answer.headers["x-smg-error-code"] == "decode_server_error"
        assert call(sim.entry, "/health").status == 200
        assert gauge(sim.prefill[0], "sglang:num_bootstrap_failed_reqs_total") == 5


def test_a_dead_prefill_is_an_error() -> None:
    with start() as sim:
        os.kill(sim.pids["prefill-0"], signal.SIGKILL)
        assert "Decode transfer failed" in chat(sim.entry, "hello").json["error"]["message"]
        error = chat(sim.entry, "hello", stream=True).json["error"]
        assert error["code"] == "prefill_server_error"
        assert error["message"].endswith("/v1/chat/completions). This will cause decode timeout.")


def test_a_busy_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SimError) as caught:
            start(port_base=port)
    assert str(caught.value) == f"port {port} can't be used: Address already in use"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"dialect": "x"}, 'no dialect "x" (known: sglang, vllm)'),
        ({"model_skill": "x"}, 'no model skill "x" (known: copy, none)'),
        ({"time_scale": 0}, "the time scale must be above 0, not 0"),
        ({"decode": 0}, "the number of decode workers must be above 0, not 0"),
        ({"faults": ["x"]}, 'no fault "x"'),
    ],
)
def test_wrong_arguments_are_one_line(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(SimError) as caught:
        start(**wrong)  # type: ignore[arg-type]
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_worker_that_dies_at_start_shows_its_last_lines(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "uvicorn.py").write_text("raise SystemExit('no uvicorn today')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(SimError) as caught:
        start()
    assert "died while starting" in str(caught.value)
    assert "no uvicorn today" in str(caught.value)


COMMAND = ("-m", "pytest_pdserve.sim")


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_the_command_runs_until_it_is_told_to_end(sign: signal.Signals) -> None:
    with python(*COMMAND, "--decode", "2") as running:
        rows = [row.split() for row in printed(running, 5)]
        pids = [int(row[-1]) for row in rows[:4]]
        assert [row[0] for row in rows] == ["prefill-0", "router", "decode-0", "decode-1", "model"]
        url = rows[1][1]
        assert call(url, "/health").body == b"OK"
        running.send_signal(sign)
        assert running.wait(20) == 0
        assert all_gone(pids, url)


def test_the_command_lists_its_faults() -> None:
    with python(*COMMAND, "--list-faults") as listing:
        text = listing.communicate(timeout=30)[0].decode()
    assert "hang-before-first-token" in text
    assert "series=S1,S2,..." in text
    assert "imitates: vllm-project/vllm#35943" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--dialect", "tgi"), 'error: no dialect "tgi" (known: sglang, vllm)'),
        (("--fault", "boom"), 'error: no fault "boom" (known: abort-leak, abort-storm-wedge, '),
        (("--prefill", "0"), "error: the number of prefill workers must be above 0, not 0"),
        (("--port-base", "99999"), "error: port 99999 can't be used"),
    ],
)
def test_the_command_refuses_bad_input_in_one_line(arguments: tuple[str, ...], message: str) -> None:
    with python(*COMMAND, *arguments, stderr=subprocess.PIPE) as refused:
        out, err = refused.communicate(timeout=30)
    assert refused.returncode == 2
    assert out == b""
    assert err.decode().startswith(message)
    assert err.count(b"\n") == 1


def test_a_load_leaves_no_request_and_no_file_open() -> None:
    with start() as sim:
        chat(sim.entry, "hello")

        def open_files() -> dict[str, int]:
            return {name: len(list(Path(f"/proc/{pid}/fd").iterdir())) for name, pid in sim.pids.items()}

        before = open_files()
        with ThreadPoolExecutor(16) as pool:
            codes = [str(code) for code in range(1000, 1200)]
            assert (
                list(pool.map(lambda code: chat(sim.entry, *copying(code), stream=True).text, codes)) == codes
            )
        for url in (*sim.prefill, *sim.decode):
            assert gauge(url, "sglang:num_used_tokens") == 0
            assert gauge(url, "sglang:num_running_reqs") == 0
        assert eventually(lambda: all(count <= before[name] for name, count in open_files().items()))
