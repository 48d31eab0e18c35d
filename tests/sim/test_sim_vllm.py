"""The vLLM dialect against what vLLM 0.32 and vllm-router 0.1.17 sent, captured chunk by chunk."""

from __future__ import annotations

import json
import os
import re
import signal
from typing import TYPE_CHECKING, Any

import pytest
from simclient import Answer, call, chat, copying, eventually, gauge

from pytest_pdserve.sim.launch import Simulation, start
from pytest_pdserve.sim.plan import Timing

if TYPE_CHECKING:
    from collections.abc import Iterator

ID = r"chatcmpl-___prefill_addr_127\.0\.0\.1:\d+___decode_addr_127\.0\.0\.1:\d+_[0-9a-f]{32}"
OPENING = {
    "index": 0,
    "delta": {"role": "assistant", "content": ""},
    "logprobs": None,
    "finish_reason": None,
}
FETCHED = (
    'vllm:prompt_tokens_by_source_total{engine="0",model_name="pdserve-toy",source="external_kv_transfer"}'
)
COMPUTED = FETCHED.replace("external_kv_transfer", "local_compute")


@pytest.fixture(scope="module")
def vllm() -> Iterator[Simulation]:
    with start(dialect="vllm", timing=Timing(kv_hold_s=1.0)) as simulation:
        yield simulation


def ask(url: str, *texts: str, **more: Any) -> Answer:
    return chat(url, *texts, **{"model": "pdserve-toy", **more})


def sample(url: str, name: str) -> float:
    """The value of one sample, named with its labels."""
    (line,) = [row for row in call(url, "/metrics").body.decode().splitlines() if row.startswith(f"{name} ")]
    return float(line.rpartition(" ")[2])


def test_streamed_chunks(vllm: Simulation) -> None:
    answer = ask(vllm.entry, *copying("481516"), stream=True, stream_options={"include_usage": True})
    role, first, second, end, usage = answer.chunks
    head = {key: role[key] for key in ("id", "object", "created", "model")}
    assert re.fullmatch(ID, head["id"])
    assert (head["object"], head["model"]) == ("chat.completion.chunk", "pdserve-toy")
    assert role == head | {"choices": [OPENING], "prompt_token_ids": None, "prompt_text": None}
    for chunk, text in ((first, "481"), (second, "516")):
        choice = {"index": 0, "delta": {"content": text}, "logprobs": None}
        assert chunk == head | {"choices": [choice | {"finish_reason": None, "token_ids": None}]}
    ending = {"finish_reason": "stop", "stop_reason": None, "token_ids": None}
    assert end == head | {"choices": [{"index": 0, "delta": {}, "logprobs": None} | ending]}
    details = {"cached_tokens": 0, "created_cache_tokens": 0, "multimodal_tokens": None}
    counts = {
        "prompt_tokens": 27,
        "total_tokens": 30,
        "completion_tokens": 3,
        "prompt_tokens_details": details,
    }
    assert usage == head | {"choices": [], "usage": counts, "system_fingerprint": "vllm-0.32.0-895df87f"}


def test_without_usage_the_last_chunk_has_the_fingerprint(vllm: Simulation) -> None:
    assert ask(vllm.entry, "hello", stream=True).chunks[-1]["system_fingerprint"] == "vllm-0.32.0-895df87f"


def test_an_unstreamed_body_has_the_captured_keys(vllm: Simulation) -> None:
    body = ask(vllm.entry, *copying("481516")).json
    first = ["id", "object", "created", "model", "choices", "service_tier", "system_fingerprint", "usage"]
    last = [
        "prompt_logprobs",
        "prompt_token_ids",
        "prompt_text",
        "kv_transfer_params",
        "ec_transfer_params",
        "metrics",
    ]
    assert list(body) == first + last
    (choice,) = body["choices"]
    assert sorted(choice) == sorted(
        ["index", "message", "logprobs", "finish_reason", "stop_reason", "token_ids", "routed_experts"]
    )
    assert choice["message"] == {
        "role": "assistant",
        "content": "481516",
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "reasoning": None,
    }


def test_headers(vllm: Simulation) -> None:
    headers = ask(vllm.entry, "hello", stream=True).headers
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["server"] == "uvicorn"
    assert re.fullmatch("chatcmpl-[A-Za-z0-9]{24}", headers["x-request-id"])


def test_the_kv_comes_from_prefill(vllm: Simulation) -> None:
    before = [sample(vllm.decode[0], name) for name in (FETCHED, COMPUTED)]
    assert ask(vllm.entry, *copying("481516")).text == "481516"
    assert [sample(vllm.decode[0], name) for name in (FETCHED, COMPUTED)] == [before[0] + 27, before[1]]


def test_a_request_straight_to_decode_is_computed_there(vllm: Simulation) -> None:
    before = sample(vllm.decode[0], COMPUTED)
    assert ask(vllm.decode[0], *copying("481516")).text == "481516"
    assert sample(vllm.decode[0], COMPUTED) == before + 27


def test_kv_that_nobody_fetches_expires(vllm: Simulation) -> None:
    before = gauge(vllm.prefill[0], "vllm:nixl_num_kv_expired_reqs_total")
    held = ask(vllm.prefill[0], "hello", max_tokens=1, kv_transfer_params={"do_remote_decode": True})
    assert held.json["kv_transfer_params"]["do_remote_prefill"] is True
    assert gauge(vllm.prefill[0], "vllm:kv_cache_usage_perc") > 0
    assert eventually(lambda: gauge(vllm.prefill[0], "vllm:nixl_num_kv_expired_reqs_total") == before + 1)
    assert gauge(vllm.prefill[0], "vllm:kv_cache_usage_perc") == 0


def test_errors(vllm: Simulation) -> None:
    unknown = ask(vllm.entry, "hello", model="x")
    assert unknown.status == 404
    assert unknown.json["error"] == {
        "message": "The model `x` does not exist.",
        "type": "NotFoundError",
        "param": "model",
        "code": 404,
    }
    long = ask(vllm.entry, "word " * 40_000)
    assert (long.status, long.json["error"]["type"]) == (400, "BadRequestError")
    malformed = call(vllm.entry, "/v1/chat/completions", raw=b"{x")
    assert (malformed.status, malformed.headers["content-type"]) == (400, "text/plain; charset=utf-8")
    assert call(vllm.entry, "/v1/chat/completions", {"model": "m"}).status == 422


def test_a_failed_transfer_is_an_error_event_in_a_200(vllm: Simulation) -> None:
    gone = {"do_remote_prefill": True, "remote_host": "127.0.0.1", "remote_port": 1, "remote_request_id": "7"}
    streamed = ask(vllm.decode[0], "hello", stream=True, kv_transfer_params=gone)
    opening, error, done = streamed.events
    assert streamed.status == 200
    assert json.loads(opening)["choices"] == [OPENING]
    assert (
        error
        == '{"error": {"message": "Internal server error", "type": "InternalServerError", "param": null, "code": 500}}'
    )
    assert done == "[DONE]"
    assert ask(vllm.decode[0], "hello", kv_transfer_params=gone).status == 500


def test_the_same_faults_strike(vllm: Simulation) -> None:
    vllm.set_faults("hang-before-first-token")
    try:
        with pytest.raises(TimeoutError):
            ask(vllm.entry, "hello", stream=True, timeout_s=0.7)
    finally:
        vllm.set_faults()
    assert eventually(lambda: gauge(vllm.decode[0], "vllm:num_requests_waiting") == 0)
    assert ask(vllm.entry, *copying("7"), stream=True).text == "7"


def test_completions(vllm: Simulation) -> None:
    body = {"model": "pdserve-toy", "prompt": "code: 481516", "max_tokens": 8}
    assert call(vllm.entry, "/v1/completions", body).json["choices"][0]["text"] == "481516"
    chunks = call(vllm.entry, "/v1/completions", body | {"stream": True}).chunks
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "481516"


def test_gauges_are_zero_again(vllm: Simulation) -> None:
    for url in (*vllm.prefill, *vllm.decode):
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
            assert eventually(lambda url=url, name=name: gauge(url, f"vllm:{name}") == 0)  # type: ignore[misc]


def test_dead_workers_are_500_in_plain_text() -> None:
    with start(dialect="vllm") as sim:
        os.kill(sim.pids["decode-0"], signal.SIGKILL)
        answer = ask(sim.entry, "hello")
        assert (answer.status, answer.headers["content-type"]) == (500, "text/plain; charset=utf-8")
        assert call(sim.entry, "/v1/models").status == 200
        os.kill(sim.pids["prefill-0"], signal.SIGKILL)
        assert ask(sim.entry, "hello").status == 500
        assert call(sim.entry, "/v1/models").status == 500
        assert call(sim.entry, "/health").status == 200
