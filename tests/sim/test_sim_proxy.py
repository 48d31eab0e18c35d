"""The proxy in front of the router: sound by itself, and its own faults."""

from __future__ import annotations

import http.client
import json
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from simclient import call, chat, copying, eventually, gauge

from pytest_pdserve.sim.launch import Simulation, start

if TYPE_CHECKING:
    from collections.abc import Iterator

RUNNING = "sglang:num_running_reqs"
CHAT = "/v1/chat/completions"
HEADERS = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def proxied() -> Iterator[Simulation]:
    with start(proxy=True, time_scale=5.0) as simulation:
        yield simulation


@pytest.fixture
def faulty(proxied: Simulation) -> Iterator[Simulation]:
    yield proxied
    proxied.set_faults()
    assert chat(proxied.entry, *copying("31"), stream=True).text == "31"


def test_it_passes_everything_on(proxied: Simulation) -> None:
    assert proxied.entry != proxied.router
    for path in ("/health", "/readiness", "/v1/models", "/workers", "/nowhere"):
        direct, through = call(proxied.router, path), call(proxied.entry, path)
        assert (through.status, through.body) == (direct.status, direct.body)
    assert (
        chat(proxied.entry, *copying("31")).text
        == chat(proxied.entry, *copying("31"), stream=True).text
        == "31"
    )
    assert chat(proxied.entry, "word " * 40_000).status == 400


def test_a_disconnect_is_passed_on_unless_it_is_swallowed(faulty: Simulation) -> None:
    def leave() -> None:
        connection = http.client.HTTPConnection(urlsplit(faulty.entry).netloc, timeout=20)
        body = {
            "model": "m",
            "messages": [{"role": "user", "content": "Talk."}],
            "stream": True,
            "max_tokens": 150,
        }
        connection.request("POST", CHAT, json.dumps(body), HEADERS)
        response = connection.getresponse()
        response.read(10)
        response.close()
        connection.close()

    finished = gauge(faulty.decode[0], "sglang:num_requests_total")
    leave()
    assert eventually(lambda: gauge(faulty.decode[0], RUNNING) == 0)
    assert gauge(faulty.decode[0], "sglang:num_requests_total") == finished
    faulty.set_faults("abort-swallowed")
    leave()
    assert eventually(lambda: gauge(faulty.decode[0], "sglang:num_requests_total") == finished + 1)


def test_it_wedges_reused_connections_while_fresh_ones_work(faulty: Simulation) -> None:
    faulty.set_faults("hang-before-headers=role=proxy,reused=1")
    connection = http.client.HTTPConnection(urlsplit(faulty.entry).netloc, timeout=20)
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "code: 5"}]})
    connection.request("POST", CHAT, body, HEADERS)
    assert b'"5"' in connection.getresponse().read()
    assert connection.sock is not None
    connection.sock.settimeout(0.7)
    connection.request("POST", CHAT, body, HEADERS)
    with pytest.raises(TimeoutError):
        connection.getresponse()
    connection.close()
    assert chat(faulty.entry, *copying("6")).text == "6"
    assert gauge(faulty.decode[0], RUNNING) == 0


def test_it_gives_up_on_a_silent_router(faulty: Simulation) -> None:
    faulty.set_faults("proxy-timeout=0.1", "hang-before-first-token")  # 0.5 s at this time scale
    answer = chat(faulty.entry, "hello")
    assert (answer.status, answer.headers["content-type"]) == (504, "text/html; charset=utf-8")
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        chat(faulty.entry, "hello", stream=True)
