"""Faults of routers, pairs and hand-overs: each one's effect, and health once it is gone."""

from __future__ import annotations

import http.client
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from simclient import call, chat, copying, eventually, gauge

from pytest_pdserve.sim.launch import Simulation, start

if TYPE_CHECKING:
    from collections.abc import Iterator

WAIT_S = 1.0
BOOTSTRAP = "sglang:num_prefill_bootstrap_queue_reqs"
PREALLOC = "sglang:num_decode_prealloc_queue_reqs"
TOO_LONG = "x " * 40_000


@pytest.fixture(scope="module")
def wide() -> Iterator[Simulation]:
    """Two of each; the breakers of its router close again after 0.6 s."""
    with start(prefill=2, decode=2, time_scale=0.01) as simulation:
        yield simulation


def answered(sim: Simulation) -> bool:
    try:
        answer = chat(sim.entry, *copying("81"), timeout_s=WAIT_S)
    except TimeoutError:
        return False
    return answer.status == 200 and answer.text == "81"


def test_one_pair_is_broken(wide: Simulation) -> None:
    assert all(answered(wide) for _ in range(4))
    wide.set_faults("pair-broken=0,1")
    with ThreadPoolExecutor(1) as pool:
        fates = pool.submit(lambda: [answered(wide) for _ in range(8)])
        assert eventually(
            lambda: (gauge(wide.prefill[0], BOOTSTRAP), gauge(wide.decode[1], PREALLOC)) == (1, 1)
        )
        assert fates.result().count(False) == 2
    wide.set_faults()
    assert all(answered(wide) for _ in range(8))


def test_refusals_open_the_breaker(wide: Simulation) -> None:
    wide.set_faults("breaker-after-400s=3")
    statuses = [chat(wide.entry, TOO_LONG).status for _ in range(12)]
    assert (statuses[0], statuses[-1]) == (400, 503)
    refused = chat(wide.entry, *copying("81"))
    assert (refused.status, refused.json["error"]["code"]) == (503, "server_selection_failed")
    assert "No available prefill workers (all circuits open" in refused.json["error"]["message"]
    assert call(wide.entry, "/readiness").status == 200
    wide.set_faults()
    assert eventually(lambda: answered(wide))
    assert [chat(wide.entry, TOO_LONG).status for _ in range(24)] == [400] * 24
    assert answered(wide)


def test_failures_open_the_breaker_without_any_fault() -> None:
    with start(time_scale=0.05) as sim:
        sim.kill("prefill-0")
        # five attempts each: ten failures in a row
        codes = [chat(sim.entry, *copying("81")).json["error"]["code"] for _ in range(3)]
        assert (codes[0], codes[-1]) == ("decode_internal_error", "server_selection_failed")
        sim.restart("prefill-0")
        assert eventually(lambda: answered(sim))


def test_health_checks_find_a_dead_role() -> None:
    with start(time_scale=0.005) as sim:
        assert call(sim.entry, "/readiness").status == 200
        sim.kill("decode-0")
        assert eventually(lambda: call(sim.entry, "/readiness").status == 503)
        told = call(sim.entry, "/workers").json["workers"]
        health = {worker["worker_type"]: worker["is_healthy"] for worker in told}
        assert health == {"prefill": True, "decode": False}
        refused = chat(sim.entry, *copying("81")).json["error"]["message"]
        assert "No available decode workers" in refused
        sim.restart("decode-0")
        assert eventually(lambda: answered(sim))


@pytest.mark.parametrize(
    ("dialect", "name", "label"),
    [
        ("sglang", "sglang:realtime_tokens_total", 'mode="prefill_compute"'),
        ("vllm", "vllm:prompt_tokens_by_source_total", 'source="local_compute"'),
    ],
)
def test_decode_recomputes(dialect: str, name: str, label: str) -> None:
    def computed(sim: Simulation) -> float:
        page = call(sim.decode[0], "/metrics").body.decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in page if line.startswith(name) and label in line)

    with start(dialect=dialect) as sim:
        assert chat(sim.entry, *copying("81"), model=sim.model).text == "81"
        assert computed(sim) == 0
        sim.set_faults("pd-not-engaged")
        assert chat(sim.entry, *copying("82"), model=sim.model).text == "82"
        assert computed(sim) > 20
        sim.set_faults()
        before = computed(sim)
        assert chat(sim.entry, *copying("83"), model=sim.model).text == "83"
        assert computed(sim) == before


def abandon(sim: Simulation) -> None:
    """Ask for a long answer and leave when prefill has begun with it."""
    address = urlsplit(sim.entry)
    told = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    body = json.dumps(told).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    with socket.create_connection((address.hostname, address.port), timeout=5) as raw:
        raw.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        assert eventually(lambda: gauge(sim.prefill[0], "sglang:num_running_reqs") >= 1)


def test_an_abort_storm_wedges_bootstrap() -> None:
    with start() as sim:
        # so slow that every request is given up before prefill is done with it
        slow, wedge = "prefill-slow=2000", "abort-storm-wedge=3"
        sim.set_faults(wedge, slow)
        for _ in range(3):
            abandon(sim)
            assert eventually(lambda: gauge(sim.prefill[0], "sglang:num_running_reqs") == 0)
        with ThreadPoolExecutor(1) as pool:
            hanging = pool.submit(answered, sim)
            assert eventually(lambda: gauge(sim.prefill[0], BOOTSTRAP) == 1)
            assert call(sim.prefill[0], "/health").status == 200
            assert hanging.result() is False
        sim.set_faults()
        assert eventually(lambda: answered(sim))


def test_a_kept_connection_goes_stale() -> None:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "code: 5"}]})

    def ask(connection: http.client.HTTPConnection) -> str:
        connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        return str(json.loads(connection.getresponse().read())["choices"][0]["message"]["content"])

    with start(proxy=True, faults=["stale-keep-alive=1"]) as sim:
        for fault, fate in ((True, "silence"), (False, "5")):
            if not fault:
                sim.set_faults()
            connection = http.client.HTTPConnection(urlsplit(sim.entry).netloc, timeout=3 * WAIT_S)
            assert ask(connection) == "5"
            time.sleep(1.1)
            try:
                found = ask(connection)
            except TimeoutError:
                found = "silence"
            connection.close()
            assert found == fate
            assert chat(sim.entry, *copying("6")).text == "6"


def tokens_made(sim: Simulation) -> float:
    return gauge(sim.decode[0], "sglang:realtime_tokens_total")


def test_overload_freezes_what_already_runs() -> None:
    with start(time_scale=10) as sim:
        sim.set_faults("overload-deadlock=2")
        with ThreadPoolExecutor(6) as pool:
            asked = [pool.submit(chat, sim.entry, "hello", max_tokens=500, timeout_s=4) for _ in range(6)]
            assert eventually(lambda: gauge(sim.decode[0], "sglang:num_running_reqs") >= 1)
            made = [tokens_made(sim)]
            while len(made) < 2 or made[-1] != made[-2]:
                time.sleep(0.3)  # a step takes 0.02 s
                made.append(tokens_made(sim))
            assert gauge(sim.decode[0], "sglang:num_running_reqs") >= 1
            assert all(isinstance(each.exception(), TimeoutError) for each in asked)
            assert tokens_made(sim) == made[-1]
        sim.set_faults()
        assert eventually(lambda: gauge(sim.decode[0], "sglang:num_used_tokens") == 0)


def test_an_abort_leaks_kv() -> None:
    def left_in_midstream(sim: Simulation) -> None:
        address = urlsplit(sim.entry)
        told = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
        body = json.dumps({**told, "max_tokens": 5000}).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        with socket.create_connection((address.hostname, address.port), timeout=5) as raw:
            raw.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            assert b"data:" in raw.recv(4096) + raw.recv(4096)
        assert eventually(lambda: gauge(sim.decode[0], "sglang:num_running_reqs") == 0)

    def used(sim: Simulation) -> float:
        return gauge(sim.decode[0], "sglang:num_used_tokens")

    with start() as sim:
        left_in_midstream(sim)
        assert eventually(lambda: used(sim) == 0)
        sim.set_faults("abort-leak")
        left_in_midstream(sim)
        assert used(sim) > 0
        assert answered(sim)
        assert used(sim) > 0
        sim.set_faults()
        assert eventually(lambda: used(sim) == 0)
