"""--pd-wait: a deployment that is still starting."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from pytest_pdserve.sim.launch import start


def free_base() -> int:
    """A port with five free ones after it."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as sock:
            base = sock.getsockname()[1]
        try:
            for port in range(base, base + 6):
                socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return base


def test_it_waits_for_what_starts_late(run):
    base = free_base()
    over = threading.Event()

    def late() -> None:
        time.sleep(2.0)
        with start(port_base=base):
            over.wait(100)

    starting = threading.Thread(target=late)
    starting.start()
    try:
        ran = run(f"--pd-target=http://127.0.0.1:{base + 1}", "--pd-wait=60", "-k", "stream_is_whole")
    finally:
        over.set()
        starting.join()
    assert ran.outcomes() == {"test_stream_is_whole": "passed"}, ran.out
    waited = ran.record["waited"]
    assert waited[0].startswith("the entry answers after ")
    assert {line.split(" ready after")[0] for line in waited[1:]} == {"router", "prefill", "decode"}
    assert "pdserve: decode ready after" in ran.out


def test_it_gives_up_in_time_and_says_for_what(run, sound_sim):
    run.write(
        "pdserve.toml",
        f'[targets.x]\nentry = "{sound_sim.entry}"\nengine = "sglang"\nprefill = ["{sound_sim.prefill[0]}"]\n'
        f'decode = ["http://127.0.0.1:9"]\n',
    )
    ran = run("--pd-target=x", "--pd-wait=2", "-k", "service_answers")
    assert (ran.code, ran.verdict) == (1, "REJECTED"), ran.out
    assert any(line.startswith("decode not ready after 2") for line in ran.record["waited"]), ran.record[
        "waited"
    ]


def test_nothing_there_is_said_after_the_wait(run):
    ran = run(f"--pd-target=http://127.0.0.1:{free_base()}", "--pd-wait=1.5", "-q")
    assert ran.code == 1, ran.out
    assert "does not answer" not in ran.out
    assert ran.record["waited"][0].startswith("the entry does not answer after ")


@pytest.mark.parametrize("value", ["-1", "inf", "nan"])
def test_no_time_to_wait(run, value):
    ran = run("--pd-target=sim", f"--pd-wait={value}")
    assert ran.code == 4
    assert "--pd-wait: has to be a number of seconds" in ran.out
