"""The bundled suites through the real sglang-router, in front of simulated workers."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

from pytest_pdserve.sim.launch import start
from pytest_pdserve.sim.plan import Role

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="sglang-router is there for Linux only"
)
START_S = 60.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def wait_until_ready(url: str) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        try:
            with urllib.request.urlopen(f"{url}/readiness", timeout=5) as answer:
                assert answer.status == 200
                return
        except urllib.error.URLError:
            time.sleep(0.2)
    pytest.fail(f"sglang-router is not ready after {START_S:g} s")


@pytest.fixture(scope="module")
def router():
    port = free_port()
    with start(seed=5) as sim:
        (prefill,) = (service for service in sim.services if service.role is Role.PREFILL)
        command = [sys.executable, "-m", "sglang_router.launch_router", "--pd-disaggregation"]
        command += ["--prefill", prefill.url, str(prefill.bootstrap_port), "--decode", sim.decode[0]]
        command += ["--host", "127.0.0.1", "--port", str(port), "--worker-startup-check-interval", "1"]
        command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                wait_until_ready(f"http://127.0.0.1:{port}")
                yield sim, f"http://127.0.0.1:{port}"
            finally:
                process.kill()


def test_a_sound_deployment_is_accepted(run, router):
    _, url = router
    ran = run(f"--pd-target={url}")
    assert (ran.code, ran.verdict) == (0, "ACCEPTED"), ran.out
    assert (ran.record["target"]["engine"], len(ran.record["target"]["services"])) == ("sglang", 3)
    assert set(ran.outcomes().values()) == {"passed"}


def test_a_fault_behind_it_is_found(run, router):
    sim, url = router
    sim.set_faults("error-event=2")
    ran = run(f"--pd-target={url}", "-k", "short_answers")
    sim.set_faults()
    assert (ran.code, ran.verdict) == (1, "REJECTED"), ran.out
