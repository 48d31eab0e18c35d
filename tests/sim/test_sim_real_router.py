"""The simulated workers behind the real sglang-router, and the simulated router beside it, field by field."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from simclient import Answer, call, chat, copying, eventually, gauge

from pytest_pdserve.sim.launch import Simulation, start
from pytest_pdserve.sim.plan import Role, Timing

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="sglang-router is there for Linux only"
)

HANGING = "sglang:num_decode_transfer_queue_reqs"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def ready(url: str) -> bool:
    try:
        return call(url, "/readiness").status == 200
    except OSError:
        return False


@contextmanager
def real_router(sim: Simulation) -> Iterator[str]:
    """A real router over a deployment's workers: its URL."""
    (worker,) = (service for service in sim.services if service.role is Role.PREFILL)
    url = f"http://127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "sglang_router.launch_router", "--pd-disaggregation"]
    command += ["--prefill", worker.url, str(worker.bootstrap_port), "--decode", sim.decode[0]]
    command += [
        "--host",
        "127.0.0.1",
        "--port",
        url.rpartition(":")[2],
        "--worker-startup-check-interval",
        "1",
    ]
    command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            assert eventually(lambda: ready(url), 60), "the real router is not ready after 60 s"
            yield url
        finally:
            process.kill()


@pytest.fixture(scope="module")
def real(sim: Simulation) -> Iterator[str]:
    """A real router over the module's simulated workers."""
    with real_router(sim) as url:
        yield url


def shape(value: Any) -> Any:
    """A JSON value's keys and types; texts stand for themselves but for ids and addresses."""
    if isinstance(value, dict):
        return {key: shape(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return sorted((shape(item) for item in value), key=repr)
    if isinstance(value, str):
        return re.sub(
            r"[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{32}|at line 1 column \d+|bootstrap_room=\d+|range \[.*\]",
            "*",
            value,
        )
    return type(value).__name__


def parts(answer: Answer) -> tuple[int, dict[str, str], Any]:
    """What must be equal whoever routed a request: status, headers, and the body's shape."""
    headers = {
        name: value for name, value in answer.headers.items() if name not in ("date", "content-length")
    }
    headers["x-request-id"] = re.sub("-[A-Za-z0-9]{24}$", "-*", headers.get("x-request-id", ""))
    if answer.body.startswith(b"data: {'"):
        return answer.status, headers, re.sub(rb"\d+", b"*", answer.body)
    if headers["content-type"] == "text/event-stream":
        return answer.status, headers, [shape(chunk) for chunk in answer.chunks]
    if headers["content-type"].startswith("application/json"):
        return answer.status, headers, shape(answer.json)
    return answer.status, headers, shape(answer.body.decode())


CHATS: dict[str, dict[str, Any]] = {
    "unstreamed": {},
    "streamed": {"stream": True, "stream_options": {"include_usage": True}},
    "streamed without usage": {"stream": True, "max_tokens": 1},
    "stop": {"stop": ["5"]},
    "over-long": {"messages": [{"role": "user", "content": "word " * 40_000}]},
    "over-long, streamed": {"messages": [{"role": "user", "content": "word " * 40_000}], "stream": True},
    "no messages": {"messages": []},
    "no tokens": {"max_tokens": 0},
    "another model": {"model": "no-such-model"},
}


@pytest.mark.parametrize("more", CHATS.values(), ids=CHATS.keys())
def test_chats_are_routed_alike(sim: Simulation, real: str, more: dict[str, Any]) -> None:
    assert parts(chat(sim.entry, *copying("481516"), **more)) == parts(chat(real, *copying("481516"), **more))


@pytest.mark.parametrize("raw", [b'{"model":"m"}', b'{"model":"m","messages":[]}'])
def test_bodies_are_checked_alike(sim: Simulation, real: str, raw: bytes) -> None:
    path = "/v1/chat/completions"
    assert parts(call(sim.entry, path, raw=raw)) == parts(call(real, path, raw=raw))


@pytest.mark.parametrize("raw", [b'{"model":"m","prompt":"code: 55","max_tokens":4}', b'{"prompt":"hello"}'])
def test_completions_are_routed_alike(sim: Simulation, real: str, raw: bytes) -> None:
    ours, theirs = call(sim.entry, "/v1/completions", raw=raw), call(real, "/v1/completions", raw=raw)
    assert parts(ours) == parts(theirs)


@pytest.mark.parametrize(
    "path", ["/health", "/liveness", "/readiness", "/health_generate", "/v1/models", "/get_server_info"]
)
def test_endpoints_answer_alike(sim: Simulation, real: str, path: str) -> None:
    ours, theirs = call(sim.entry, path), call(real, path)
    assert (ours.status, ours.body, ours.headers["content-type"]) == (
        theirs.status,
        theirs.body,
        theirs.headers["content-type"],
    )


@pytest.mark.parametrize("path", ["/workers", "/get_loads", "/get_model_info"])
def test_lists_have_the_same_shape(sim: Simulation, real: str, path: str) -> None:
    assert shape(call(sim.entry, path).json) == shape(call(real, path).json)


@pytest.mark.parametrize("path", ["/metrics", "/server_info", "/v1/loads", "/docs", "/"])
def test_what_the_real_router_does_not_have_ours_has_not_either(
    sim: Simulation, real: str, path: str
) -> None:
    ours, theirs = call(sim.entry, path), call(real, path)
    assert (ours.status, ours.body) == (theirs.status, theirs.body) == (404, b"")


def test_a_hang_behind_the_real_router(sim: Simulation, real: str) -> None:
    """Headers come through it, nothing else; and it does not notice that a client left a silent stream."""
    sim.set_faults("hang-before-first-token")
    try:
        with pytest.raises(TimeoutError):
            chat(real, "hello", stream=True, timeout_s=1.0)
        assert not eventually(lambda: gauge(sim.decode[0], HANGING) == 0, 1.0)
    finally:
        sim.set_faults()
    assert eventually(lambda: gauge(sim.decode[0], HANGING) == 0)
    assert chat(real, *copying("99"), stream=True).text == "99"


@pytest.mark.parametrize("name", ["decode-0", "prefill-0"])
def test_a_dead_worker_looks_alike(name: str) -> None:
    """Both routers wait for the living leg too, and that waits for the dead one until its bootstrap timeout."""
    with start(timing=Timing(bootstrap_timeout_s=0.2)) as sim, real_router(sim) as url:
        os.kill(sim.pids[name], signal.SIGKILL)
        for more in ({}, {"stream": True}):
            assert parts(chat(sim.entry, "hello", **more)) == parts(chat(url, "hello", **more))
