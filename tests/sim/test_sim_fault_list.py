"""Every fault of the list: its effect as a raw client sees it, and health once it is gone."""

from __future__ import annotations

import http.client
import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from simclient import call, chat, copying, eventually, gauge

from pytest_pdserve.sim.faults import KINDS
from pytest_pdserve.sim.launch import Simulation, start

WAIT_S = 0.7
"""How long a raw client waits before it calls a hang a hang."""


@pytest.fixture
def strike(sim: Simulation) -> Iterator[Callable[..., Simulation]]:
    """Sets faults on the module's deployment; they are gone afterwards, and it is sound again."""

    def set_faults(*texts: str) -> Simulation:
        sim.set_faults(*texts)
        return sim

    yield set_faults
    sim.set_faults()
    assert chat(sim.entry, *copying("8151"), stream=True).text == "8151"
    assert eventually(lambda: gauge(sim.decode[0], "sglang:token_usage") == 0)
    assert eventually(lambda: gauge(sim.prefill[0], "sglang:token_usage") == 0)


Strike = Callable[..., Simulation]


def seconds_to_answer(sim: Simulation) -> float:
    began = time.monotonic()
    assert chat(sim.entry, *copying("17")).text == "17"
    return time.monotonic() - began


def raw_stream(url: str, wait_s: float, *texts: str, limit: int = 32) -> tuple[bytes, str]:
    """All that comes of a streamed chat, chunked framing included, and how it ended."""
    address = urlsplit(url)
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
    body = json.dumps({"model": "m", "messages": messages, "stream": True, "max_tokens": limit}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    got = b""
    with socket.create_connection((address.hostname, address.port), timeout=wait_s) as raw:
        raw.sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        while not got.endswith(b"\r\n0\r\n\r\n"):
            try:
                piece = raw.recv(65536)
            except TimeoutError:
                return got, "hung"
            except ConnectionResetError:
                return got, "reset"
            if not piece:
                return got, "closed"
            got += piece
    return got, "complete"


def gauges(sim: Simulation, *names: str) -> list[float]:
    urls = {"prefill": sim.prefill[0], "decode": sim.decode[0]}
    return [gauge(urls[name.split(":")[0]], f"sglang:num_{name.split(':')[1]}_reqs") for name in names]


def test_cold_start(strike: Strike) -> None:
    sim = strike("cold-start=1.0")
    assert seconds_to_answer(sim) > 0.5
    time.sleep(0.5)
    assert min(seconds_to_answer(sim) for _ in range(3)) < 0.5


@pytest.mark.parametrize("fault", ["never-warm=0.5", "drift=0.25", "series=0.5,0.5"])
def test_late_first_tokens(strike: Strike, fault: str) -> None:
    sim = strike(fault)
    assert seconds_to_answer(sim) >= 0.25
    assert seconds_to_answer(sim) >= 0.5


def token_times(sim: Simulation, limit: int) -> list[float]:
    """When each event of a streamed chat came, from its beginning on."""
    connection = http.client.HTTPConnection(urlsplit(sim.entry).netloc, timeout=20)
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "Talk."}],
        "stream": True,
        "max_tokens": limit,
    }
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    began = time.monotonic()
    with connection.getresponse() as response:
        times = [time.monotonic() - began for line in response if line.startswith(b"data: {")]
    connection.close()
    return times


def test_late_second_token(strike: Strike) -> None:
    role_and_first, second, *_ = [
        t for i, t in enumerate(token_times(strike("late-second-token=1.0"), 6)) if i > 0
    ]
    assert second - role_and_first > 0.9


def test_decode_slow(strike: Strike) -> None:
    times = token_times(strike("decode-slow=100"), 6)
    assert times[-1] - times[0] > 5 * 0.2 * 0.9


@pytest.mark.parametrize("fault", ["prefill-slow=500", "transfer-slow=500"])
def test_slow_before_the_first_token(strike: Strike, fault: str) -> None:
    assert seconds_to_answer(strike(fault)) > 0.45


def test_wave_dip(strike: Strike) -> None:
    """Three at once fall into the slow bucket; two do not."""
    sim = strike("wave-dip=2,100")

    def seconds(concurrency: int) -> float:
        began = time.monotonic()
        with ThreadPoolExecutor(concurrency) as pool:
            list(pool.map(lambda _: chat(sim.entry, "Talk.", max_tokens=20), range(concurrency)))
        return time.monotonic() - began

    assert seconds(3) > 1.0
    assert min(seconds(2) for _ in range(2)) < 1.0


@pytest.mark.parametrize("role", ["router", "decode"])
def test_hang_before_headers(strike: Strike, role: str) -> None:
    sim = strike(f"hang-before-headers=role={role}")
    assert raw_stream(sim.entry, WAIT_S, "hello") == (b"", "hung")
    with pytest.raises(TimeoutError):
        chat(sim.entry, "hello", timeout_s=WAIT_S)
    assert call(sim.entry, "/health").status == 200


def test_hang_before_first_token(strike: Strike) -> None:
    got, end = raw_stream(strike("hang-before-first-token").entry, WAIT_S, "hello")
    assert end == "hung"
    assert got.endswith(b"\r\n\r\n")
    assert b"data:" not in got


@pytest.mark.parametrize(
    ("fault", "stuck", "idle"),
    [
        (
            "transfer-stuck",
            ("prefill:prefill_inflight_queue", "decode:decode_transfer_queue"),
            "prefill:running",
        ),
        (
            "bootstrap-stuck",
            ("prefill:prefill_bootstrap_queue", "decode:decode_prealloc_queue"),
            "prefill:running",
        ),
    ],
)
def test_stuck_hand_over(strike: Strike, fault: str, stuck: tuple[str, ...], idle: str) -> None:
    sim = strike(fault)
    with ThreadPoolExecutor(1) as pool:
        hanging = pool.submit(raw_stream, sim.entry, 2.0, "hello")
        assert eventually(lambda: gauges(sim, *stuck) == [1, 1], 1.8)
        assert gauges(sim, idle, "decode:running") == [0, 0]
        assert hanging.result()[1] == "hung"
    assert eventually(lambda: gauges(sim, *stuck) == [0, 0])


def test_decode_hang_midstream(strike: Strike) -> None:
    sim = strike("decode-hang-midstream=3")
    with ThreadPoolExecutor(1) as pool:
        hanging = pool.submit(raw_stream, sim.entry, 1.5, "hello")
        assert eventually(lambda: gauges(sim, "decode:running") == [1], 1.4)
        got, end = hanging.result()
    assert (got.count(b"data: {"), end) == (4, "hung")  # the role and three tokens
    assert eventually(lambda: gauges(sim, "decode:running") == [0])


@pytest.mark.parametrize("role", ["router", "decode"])
def test_hang_midstream_on_the_wire(strike: Strike, role: str) -> None:
    got, end = raw_stream(strike(f"hang-midstream=2,role={role}").entry, WAIT_S, "hello")
    assert b"data: " in got
    assert b"[DONE]" not in got
    assert end == "hung"


def test_endless_stream(strike: Strike) -> None:
    sim = strike("endless-stream")
    connection = http.client.HTTPConnection(urlsplit(sim.entry).netloc, timeout=20)
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": True, "max_tokens": 4}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    with connection.getresponse() as response:
        events = [response.readline() for _ in range(80)]
    connection.close()
    assert sum(line.startswith(b"data: {") for line in events) == 40
    assert not any(b'"finish_reason":"' in line for line in events)


def test_finish_error(strike: Strike) -> None:
    answer = chat(strike("finish-error").entry, "hello")
    assert answer.status == 200
    choice = answer.json["choices"][0]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("error", "")
    assert answer.json["usage"]["completion_tokens"] == 0


def test_error_event(strike: Strike) -> None:
    answer = chat(strike("error-event=2").entry, "hello", stream=True)
    *chunks, error, done = answer.events
    assert answer.status == 200
    assert json.loads(error)["error"]["code"] == 500
    assert done == "[DONE]"
    assert not any('"finish_reason":"' in chunk for chunk in chunks)


def test_usage_wrong(strike: Strike) -> None:
    assert chat(strike("usage-wrong").entry, "hello", max_tokens=5).json["usage"]["completion_tokens"] == 6


def test_stream_differs(strike: Strike) -> None:
    sim = strike("stream-differs")
    assert chat(sim.entry, *copying("123456789")).text == "123456789"
    assert chat(sim.entry, *copying("123456789"), stream=True).text == "123789"


def test_split_utf8(strike: Strike) -> None:
    assert "�" in chat(strike("split-utf8").entry, *copying("日本語"), stream=True).text


def test_one_token_lost(strike: Strike) -> None:
    body = chat(strike("one-token-lost").entry, *copying("481516"), max_tokens=1).json
    assert body["choices"][0]["message"]["content"] == ""


def test_leaked_marker(strike: Strike) -> None:
    assert chat(strike("leaked-marker").entry, *copying("12")).text == "<|im_end|>12"


def test_no_done(strike: Strike) -> None:
    got, end = raw_stream(strike("no-done=3").entry, 5.0, "hello")
    assert (got.count(b"data: {"), b"[DONE]" in got, end) == (3, False, "complete")


def test_reset_midstream(strike: Strike) -> None:
    got, end = raw_stream(strike("reset-midstream=1,role=router").entry, 5.0, "hello", limit=500)
    assert b"data: {" in got
    assert b"[DONE]" not in got
    assert end == "reset"


def test_a_reset_behind_the_router_is_a_broken_end(strike: Strike) -> None:
    got, end = raw_stream(strike("reset-midstream=3").entry, 5.0, "hello", limit=500)
    assert b"[DONE]" not in got
    assert end in ("closed", "reset")


def test_invalid_json(strike: Strike) -> None:
    answer = chat(strike("invalid-json=2").entry, "hello", stream=True, max_tokens=6)
    with pytest.raises(json.JSONDecodeError):
        [json.loads(event) for event in answer.events if event != "[DONE]"]


def test_drip(strike: Strike) -> None:
    sim = strike("drip=0.2")
    connection = http.client.HTTPConnection(urlsplit(sim.entry).netloc, timeout=20)
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": True}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    with connection.getresponse() as response:
        began = time.monotonic()
        assert response.read(4) == b"data"
        assert time.monotonic() - began > 0.5
    connection.close()


def test_buffered_stream(strike: Strike) -> None:
    times = token_times(strike("buffered-stream", "decode-slow=50"), 8)
    assert times[0] > 0.5
    assert times[-1] - times[0] < 0.5


def test_context_lost(strike: Strike) -> None:
    turns = ("code: 11", "11", "code: 22", "22", "code: 33")
    assert chat(strike("context-lost=2").entry, *turns).text == "22"
    assert chat(strike("context-lost=2").entry, *turns[:3]).text == "22"


def test_stale_prefix(strike: Strike) -> None:
    sim = strike("stale-prefix=5")
    assert chat(sim.entry, "code: 111", "111", "code: 22").text == "22"
    assert chat(sim.entry, "code: 111", "111", "code: 33").text == "22"
    assert chat(sim.entry, "word: abc", "abc", "word: def").text == "def"


LONG = "The grass is tall. " * 100


def test_kv_corrupt(strike: Strike) -> None:
    facts = [f"The sign of door {n} is k{n}." for n in range(40)]
    doors = range(0, 40, 3)

    def found(sim: Simulation) -> list[bool]:
        texts = [chat(sim.entry, " ".join([*facts, f"What is the sign of door {n}?"])).text for n in doors]
        return [text == f"k{n}" for text, n in zip(texts, doors, strict=True)]

    assert all(found(strike()))
    assert not all(found(strike("kv-corrupt=64")))
    assert chat(strike("kv-corrupt=64").entry, *copying("44")).text == "44"


def test_needle_lost(strike: Strike) -> None:
    sim = strike("needle-lost=100")
    ask = "What is the passphrase?"
    assert chat(sim.entry, f"The passphrase is heron. {LONG}{ask}").text != "heron"
    assert chat(sim.entry, f"{LONG}The passphrase is heron. {ask}").text == "heron"


def test_cross_talk_only_above_a_concurrency(strike: Strike) -> None:
    sim = strike("cross-talk=above=3", "decode-slow=20")  # slow, so that they overlap
    alone = [chat(sim.entry, *copying(str(n))).text for n in range(1000, 1008)]
    assert alone == [str(n) for n in range(1000, 1008)]
    codes = [str(n) for n in range(2000, 2024)]
    with ThreadPoolExecutor(12) as pool:
        together = list(pool.map(lambda code: chat(sim.entry, *copying(code)).text, codes))
    assert together != codes
    assert set(together) <= set(codes)


def test_overload_is_refused_above_a_level_only(strike: Strike) -> None:
    sim = strike("overload-refused=429,above=2", "decode-slow=20")  # slow, so that they overlap
    with ThreadPoolExecutor(8) as pool:
        statuses = [a.status for a in pool.map(lambda _: chat(sim.entry, *copying("77")), range(8))]
    assert {200, 429} == set(statuses)
    assert chat(sim.entry, *copying("78")).text == "78"


def test_overload_deadlock_outlasts_the_overload(strike: Strike) -> None:
    sim = strike("overload-deadlock=3", "decode-slow=20")
    assert chat(sim.entry, *copying("81")).text == "81"
    with ThreadPoolExecutor(8) as pool:
        ends = list(pool.map(lambda _: raw_stream(sim.entry, WAIT_S, *copying("82"))[1], range(8)))
    assert "hung" in ends
    assert eventually(lambda: gauges(sim, "decode:decode_transfer_queue") == [0])
    assert raw_stream(sim.entry, WAIT_S, *copying("83"))[1] == "hung"
    assert call(sim.decode[0], "/health").status == 200


def test_hot_spot() -> None:
    def served(sim: Simulation) -> list[float]:
        before = [gauge(url, "sglang:num_requests_total") for url in sim.decode]
        for _ in range(4):
            chat(sim.entry, *copying("91"))
        return [
            gauge(url, "sglang:num_requests_total") - n for url, n in zip(sim.decode, before, strict=True)
        ]

    with start(decode=2) as sim:
        sim.set_faults("hot-spot")
        assert served(sim) == [4, 0]
        sim.set_faults()
        assert served(sim) == [2, 2]


def test_health_lies(strike: Strike) -> None:
    sim = strike("health-lies=1")
    assert call(sim.decode[0], "/health").status == 503
    assert chat(sim.entry, *copying("12")).text == "12"
    sim = strike("health-lies=0")
    assert call(sim.decode[0], "/health").status == 200
    with pytest.raises(TimeoutError):
        chat(sim.entry, "hello", timeout_s=WAIT_S)


def test_scope_by_turn(strike: Strike) -> None:
    sim = strike("leaked-marker=turn=2")
    assert chat(sim.entry, "code: 11").text == "11"
    assert chat(sim.entry, "code: 11", "11", "code: 22").text == "<|im_end|>22"


def test_scope_by_reused_connection(strike: Strike) -> None:
    sim = strike("hang-before-headers=role=router,reused=1")
    connection = http.client.HTTPConnection(urlsplit(sim.entry).netloc, timeout=20)
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "code: 5"}]})
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/v1/chat/completions", body, headers)
    assert json.loads(connection.getresponse().read())["choices"][0]["message"]["content"] == "5"
    assert connection.sock is not None
    connection.sock.settimeout(WAIT_S)
    connection.request("POST", "/v1/chat/completions", body, headers)
    with pytest.raises(TimeoutError):
        connection.getresponse()
    connection.close()
    assert chat(sim.entry, *copying("6")).text == "6"


def test_every_fault_is_tried() -> None:
    """It fails for a fault that no test of the simulator strikes with."""
    texts = "".join(path.read_text() for path in Path(__file__).parent.glob("test_sim_*.py"))
    assert [name for name in KINDS if not re.search(rf'"{name}["=]', texts)] == []
