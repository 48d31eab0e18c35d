"""Each fault as a raw client sees it, and that it ends when it is taken away."""

from __future__ import annotations

import http.client
import json
import socket
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from simclient import CALL_S, call, chat, copying, eventually, gauge

from pytest_pdserve.sim.faults import Call, FaultError, Switchboard, parse
from pytest_pdserve.sim.launch import SimError, Simulation
from pytest_pdserve.sim.plan import Role

if TYPE_CHECKING:
    from collections.abc import Iterator

TRANSFER = "sglang:num_decode_transfer_queue_reqs"


@pytest.fixture
def faulty(sim: Simulation) -> Iterator[Simulation]:
    """The module's deployment; whatever faults a test sets are gone after it."""
    yield sim
    sim.set_faults()


@contextmanager
def open_stream(sim: Simulation, timeout_s: float = 5.0) -> Iterator[http.client.HTTPResponse]:
    """A streamed chat whose headers have come; whatever is read of it must come within a time."""
    connection = http.client.HTTPConnection(urlsplit(sim.entry).netloc, timeout=CALL_S)
    try:
        body = {"messages": [{"role": "user", "content": "hello"}], "stream": True, "max_tokens": 8}
        connection.request(
            "POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"}
        )
        assert connection.sock is not None
        sock = connection.sock
        with connection.getresponse() as response:
            sock.settimeout(timeout_s)
            yield response
    finally:
        connection.close()


def healthy(sim: Simulation) -> bool:
    return all(call(url, "/health").status == 200 for url in (sim.entry, *sim.prefill, *sim.decode))


def test_hang_before_first_token(faulty: Simulation) -> None:
    faulty.set_faults("hang-before-first-token")
    with open_stream(faulty, timeout_s=0.5) as response:
        assert response.status == 200
        with pytest.raises(TimeoutError):
            response.read(1)
        assert healthy(faulty)
        assert gauge(faulty.decode[0], TRANSFER) == 1
        assert gauge(faulty.decode[0], "sglang:num_running_reqs") == 0
        assert gauge(faulty.prefill[0], "sglang:num_prefill_inflight_queue_reqs") == 0
        assert gauge(faulty.prefill[0], "sglang:num_running_reqs") == 0
    assert eventually(lambda: gauge(faulty.decode[0], TRANSFER) == 0)


def test_an_unstreamed_hang_has_no_headers_and_ends_with_its_client(faulty: Simulation) -> None:
    faulty.set_faults("hang-before-first-token")
    address = urlsplit(faulty.entry)
    body = json.dumps({"messages": [{"role": "user", "content": "hello"}]}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
    head += "Content-Type: application/json\r\n\r\n"
    with socket.create_connection((address.hostname, address.port), timeout=0.5) as raw:
        raw.sendall(head.encode() + body)
        with pytest.raises(TimeoutError):
            raw.recv(1)
        assert eventually(lambda: gauge(faulty.decode[0], TRANSFER) == 1)
    assert eventually(lambda: gauge(faulty.decode[0], TRANSFER) == 0)
    assert eventually(lambda: gauge(faulty.decode[0], "sglang:token_usage") == 0)


def test_taking_a_fault_away_restores_health(faulty: Simulation) -> None:
    faulty.set_faults("hang-before-first-token")
    with open_stream(faulty) as held:
        faulty.set_faults()
        assert b"[DONE]" in held.read()
    assert chat(faulty.entry, *copying("4711"), stream=True).text == "4711"


def test_a_fault_after_so_many_requests(faulty: Simulation) -> None:
    faulty.set_faults("hang-before-first-token=after=2")
    assert [chat(faulty.entry, *copying("12")).text for _ in range(2)] == ["12", "12"]
    with open_stream(faulty, timeout_s=0.3) as response, pytest.raises(TimeoutError):
        response.read(1)


def test_the_series_of_four(faulty: Simulation) -> None:
    faulty.set_faults("series=0.3,0.9,0.1,inf")
    seconds = []
    for _ in range(3):
        began = time.monotonic()
        with open_stream(faulty) as response:
            assert response.read(1) == b"d"
            seconds.append(time.monotonic() - began)
            assert b"[DONE]" in response.read()
    assert seconds[0] >= 0.3
    assert seconds[1] >= 0.9
    assert 0.1 <= seconds[2] < seconds[1]
    for _ in range(2):
        with open_stream(faulty, timeout_s=0.3) as response, pytest.raises(TimeoutError):
            response.read(1)
        assert healthy(faulty)


def test_a_series_without_a_hang_ends_healthy(faulty: Simulation) -> None:
    faulty.set_faults("series=0.4,after=1")
    seconds = []
    for _ in range(3):
        began = time.monotonic()
        chat(faulty.entry, *copying("5"))
        seconds.append(time.monotonic() - began)
    assert seconds[1] >= 0.4 > min(seconds[0], seconds[2])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hang", 'no fault "hang" (known: abort-leak, abort-storm-wedge, '),
        ("series", "needs seconds"),
        ("series=1,x", '"x" is no number'),
        ("series=-1", '"-1" is no number'),
        ("series=nan", '"nan" is no number'),
        ("series=1,when=2", 'no argument "when" (known: above, after, reused, role, share, turn)'),
        ("hang-before-first-token=3", 'takes no plain value, got "3"'),
        ("wave-dip=1,2,3", 'takes at most 2 (BATCH,FACTOR) plain value, got "3"'),
        ("drip=role=prefill", 'no role "prefill" (known: decode, router, proxy)'),
        ("series=1,after=x", 'after takes a number, not "x"'),
        ("series=1,share=2", "share takes a number from 0 to 1, not 2"),
    ],
)
def test_wrong_fault_texts_name_what_is_valid(sim: Simulation, text: str, message: str) -> None:
    with pytest.raises(FaultError) as caught:
        parse(text)
    assert message in str(caught.value)
    with pytest.raises(SimError):
        sim.set_faults(text)
    refused = call(sim.entry, "/sim/faults", [text], method="PUT")
    assert (refused.status, refused.json) == (400, {"error": str(caught.value)})


def test_the_control_endpoint_tells_what_is_active(faulty: Simulation) -> None:
    faulty.set_faults("series=1", "hang-before-first-token=after=9")
    assert call(faulty.decode[0], "/sim/faults").json == ["series=1", "hang-before-first-token=after=9"]


def test_a_share_of_requests_is_struck_and_the_seed_decides_which() -> None:
    def struck(seed: int) -> list[bool]:
        board = Switchboard(Role.DECODE, seed, 1.0)
        board.set(["hang-before-first-token=share=0.3"])
        return [bool(board.admit(Call())) for _ in range(200)]

    assert struck(1) == struck(1)
    assert struck(1) != struck(2)
    assert 30 < sum(struck(1)) < 90


def test_a_fault_strikes_its_own_role_only() -> None:
    board = Switchboard(Role.PREFILL, 0, 1.0)
    board.set(["hang-before-first-token"])
    assert not board.admit(Call())
