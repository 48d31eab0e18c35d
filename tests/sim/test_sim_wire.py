"""What the simulated deployment sends, against captures of the real engines and routers."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from simclient import Answer, call, chat, copying, eventually, gauge

from pytest_pdserve.sim.launch import Simulation, start

PREFILL_QUEUES = (
    "num_running_reqs",
    "num_queue_reqs",
    "num_prefill_bootstrap_queue_reqs",
    "num_prefill_inflight_queue_reqs",
)
DECODE_QUEUES = (
    "num_running_reqs",
    "num_queue_reqs",
    "num_decode_prealloc_queue_reqs",
    "num_decode_transfer_queue_reqs",
)


def all_idle(sim: Simulation) -> bool:
    """Whether every queue and the KV of every worker is empty."""
    prefill = [
        gauge(url, f"sglang:{name}") for url in sim.prefill for name in (*PREFILL_QUEUES, "token_usage")
    ]
    decode = [gauge(url, f"sglang:{name}") for url in sim.decode for name in (*DECODE_QUEUES, "token_usage")]
    return not any(prefill + decode)


def test_streamed_chunks_have_sglang_s_shape(sim: Simulation) -> None:
    answer = chat(
        sim.entry, *copying("481516"), stream=True, stream_options={"include_usage": True}, model="m"
    )
    assert answer.status == 200
    role, first, second, end, usage = answer.chunks
    nothing = {"role": None, "content": None, "reasoning_content": None, "tool_calls": None}

    def body(delta: dict[str, str], **end: object) -> dict[str, object]:
        choice = {"index": 0, "delta": nothing | delta, "logprobs": None}
        choice |= {"finish_reason": None, "matched_stop": None} | end
        head = {key: role[key] for key in ("id", "created")}
        return head | {"object": "chat.completion.chunk", "model": "m", "choices": [choice], "usage": None}

    assert re.fullmatch("[0-9a-f]{32}", role["id"])
    assert role == body({"role": "assistant", "content": ""})
    assert (first, second) == (body({"content": "481"}), body({"content": "516"}))
    assert end == body({}, finish_reason="stop", matched_stop=2)
    assert usage["choices"] == []
    assert usage["usage"] == {
        "prompt_tokens": 27,
        "total_tokens": 30,
        "completion_tokens": 3,  # two tokens of text and the end-of-sequence token
        "prompt_tokens_details": None,
        "reasoning_tokens": 0,
    }


def test_usage_is_streamed_only_when_asked_for(sim: Simulation) -> None:
    assert all(chunk["usage"] is None for chunk in chat(sim.entry, "hello", stream=True).chunks)


def test_an_unstreamed_answer_has_sglang_s_shape(sim: Simulation) -> None:
    body = chat(sim.entry, *copying("481516")).json
    message = {"role": "assistant", "content": "481516", "reasoning_content": None, "tool_calls": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop", "matched_stop": 2}
    assert body["object"] == "chat.completion"
    assert body["choices"] == [choice]
    assert (
        body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + body["usage"]["completion_tokens"]
    )
    assert body["metadata"] == {"weight_version": "default"}


def test_completions_stream_and_answer(sim: Simulation) -> None:
    ask = {"model": "m", "prompt": "code: 481516", "max_tokens": 8}
    whole = call(sim.entry, "/v1/completions", ask).json
    streamed = call(sim.entry, "/v1/completions", ask | {"stream": True}).chunks
    assert whole["object"] == "text_completion"
    assert whole["choices"][0]["text"] == "481516"
    assert "".join(chunk["choices"][0]["text"] for chunk in streamed) == "481516"
    assert streamed[-1]["choices"][0]["finish_reason"] == "stop"


def test_headers_through_the_router(sim: Simulation) -> None:
    unstreamed, streamed = chat(sim.entry, "hello").headers, chat(sim.entry, "hello", stream=True).headers
    cors = {
        "server": "uvicorn",
        "vary": "origin, access-control-request-method, access-control-request-headers",
        "access-control-allow-origin": "*",
        "access-control-expose-headers": "*",
    }
    assert unstreamed.items() >= (cors | {"content-type": "application/json"}).items()
    assert streamed.items() >= (cors | {"content-type": "text/event-stream"}).items()
    assert streamed["transfer-encoding"] == "chunked"
    assert re.fullmatch("chatcmpl-[A-Za-z0-9]{24}", streamed["x-request-id"])
    assert set(unstreamed) == {*cors, "content-type", "content-length", "date", "x-request-id"}


@pytest.mark.parametrize("limit", ["max_tokens", "max_completion_tokens"])
def test_token_limits_are_exact(sim: Simulation, limit: str) -> None:
    for tokens in (1, 2, 17):
        body = chat(sim.entry, "Talk.", **{"max_tokens": None, limit: tokens}).json
        assert body["usage"]["completion_tokens"] == tokens
        assert body["choices"][0]["finish_reason"] == "length"
        assert body["choices"][0]["matched_stop"] is None


def test_one_chunk_a_token(sim: Simulation) -> None:
    chunks = chat(sim.entry, "Talk.", stream=True, max_tokens=20).chunks
    texts = [
        choice["delta"]["content"]
        for chunk in chunks
        for choice in chunk["choices"]
        if choice["delta"]["content"]
    ]
    assert len(texts) == 20


def test_stop_strings_end_the_answer_unshown(sim: Simulation) -> None:
    body = chat(sim.entry, *copying("481516"), stop=["9", "15"]).json
    choice = body["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"], choice["matched_stop"]) == (
        "48",
        "stop",
        "15",
    )


def test_min_tokens_and_ignore_eos_go_beyond_the_end(sim: Simulation) -> None:
    longer = chat(sim.entry, *copying("481516"), min_tokens=9).json["usage"]["completion_tokens"]
    full = chat(sim.entry, *copying("481516"), ignore_eos=True, max_tokens=40).json["usage"][
        "completion_tokens"
    ]
    assert longer > 3
    assert full == 40


def test_multi_byte_characters_arrive_whole(sim: Simulation) -> None:
    answer = chat(sim.entry, *copying("日本語-é😀"), stream=True)
    assert answer.text == "日本語-é😀"
    assert "�" not in answer.body.decode()


def test_many_at_once_get_their_own_codes_back(sim: Simulation) -> None:
    codes = [f"{n:06}" for n in range(100_000, 100_040)]
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda code: chat(sim.entry, *copying(code), stream=True).text, codes))
    assert answers == codes


def test_gauges_return_to_zero_and_counters_grow(sim: Simulation) -> None:
    before = gauge(sim.decode[0], "sglang:generation_tokens_total")
    chat(sim.entry, "Talk.", max_tokens=10)
    assert eventually(lambda: all_idle(sim))
    assert gauge(sim.decode[0], "sglang:generation_tokens_total") == before + 10


def test_gauges_move_while_a_request_runs() -> None:
    with start(time_scale=20.0) as sim, ThreadPoolExecutor(1) as pool:
        running = pool.submit(chat, sim.entry, "Talk.", max_tokens=30)
        assert eventually(lambda: gauge(sim.decode[0], "sglang:num_running_reqs") == 1)
        assert gauge(sim.decode[0], "sglang:token_usage") > 0
        assert running.result().status == 200
        assert eventually(lambda: all_idle(sim))


def test_the_router_s_own_endpoints(sim: Simulation) -> None:
    def said(path: str) -> tuple[int, str, bytes]:
        answer = call(sim.entry, path)
        return answer.status, answer.headers.get("content-type", ""), answer.body

    text, json = "text/plain; charset=utf-8", "application/json"
    assert said("/health") == said("/liveness") == (200, text, b"OK")
    assert said("/health_generate") == (200, text, b"At least one router has healthy workers")
    ready = b'{"status":"ready","healthy_workers":2,"total_workers":2}'
    assert said("/readiness") == (200, json, ready)
    models = b'{"object":"list","data":[{"id":"pdserve-toy","object":"model","owned_by":"local"}]}'
    assert said("/v1/models") == (200, text, models)
    info = b'{"router_manager":true,"routers_count":1,"workers_count":2}'
    assert said("/get_server_info") == (200, text, info)
    assert said("/get_loads")[0] == 200
    assert call(sim.entry, "/get_model_info").json["model_path"] == "/models/pdserve-toy"
    for path in ("/metrics", "/server_info", "/model_info", "/v1/loads", "/get_load", "/docs", "/"):
        assert said(path) == (404, "", b"")


def test_the_router_lists_its_workers(sim: Simulation) -> None:
    body = call(sim.entry, "/workers").json
    prefill, decode = body["workers"]
    assert (prefill["url"], prefill["worker_type"]) == (sim.prefill[0], "prefill")
    assert (decode["url"], decode["worker_type"]) == (sim.decode[0], "decode")
    assert isinstance(prefill["bootstrap_port"], int)
    assert "bootstrap_port" not in decode
    assert body["stats"] == {"prefill_count": 1, "decode_count": 1, "regular_count": 0}


def test_the_workers_own_endpoints(sim: Simulation) -> None:
    for role, url in (("prefill", sim.prefill[0]), ("decode", sim.decode[0])):
        for path in ("/health", "/health_generate"):
            assert (call(url, path).status, call(url, path).body) == (200, b"")
        for path in ("/server_info", "/get_server_info"):
            assert call(url, path).json["disaggregation_mode"] == role
        for path in ("/model_info", "/get_model_info"):
            assert call(url, path).json["is_generation"] is True
        assert call(url, "/v1/models").json["data"][0]["id"] == sim.model
        load = call(url, "/v1/loads?include=core,disagg,queues").json["loads"][0]
        assert load["num_running_reqs"] == 0
        assert load["disaggregation"]["mode"] == role
        assert "disaggregation" not in call(url, "/v1/loads?include=core").json["loads"][0]
        assert call(url, "/get_load").json[0]["num_reqs"] == 0


def refused(answer: Answer) -> tuple[int, dict[str, str]]:
    return answer.status, answer.json["error"]


def test_errors_of_the_router(sim: Simulation) -> None:
    status, error = refused(call(sim.entry, "/v1/chat/completions", raw=b"{x"))
    assert (status, error["type"], error["code"]) == (400, "invalid_request_error", "json_parse_error")
    assert error["message"].startswith("JSON syntax error: Failed to parse the request body as JSON: ")
    status, error = refused(call(sim.entry, "/v1/chat/completions", {"model": "m"}))
    assert (status, error["code"]) == (400, "json_parse_error")
    assert "missing field `messages`" in error["message"]


def test_an_over_long_prompt_is_refused_at_once(sim: Simulation) -> None:
    whole, streamed = (chat(sim.entry, "word " * 40_000, stream=stream) for stream in (False, True))
    status, error = refused(whole)
    assert status == streamed.status == 400
    assert (
        error["message"]
        == "The input (40004 tokens) is longer than the model's context length (32768 tokens)."
    )
    assert whole.headers["x-smg-error-code"] == "decode_bad_request"
    assert streamed.body.startswith(b'data: {\'error\': {"message":{"object":"error",')
    assert not streamed.body.endswith(b"\n")  # the real router cuts it off, see the capture
    assert chat(sim.entry, *copying("11")).text == "11"


def test_errors_of_a_worker(sim: Simulation) -> None:
    direct = chat(sim.decode[0], "hello")
    assert direct.status == 400
    assert direct.json == {
        "object": "error",
        "message": "Invalid request: Disaggregated request received without bootstrap room id.",
        "type": "BadRequestError",
        "param": None,
        "code": 400,
    }
    malformed = call(sim.decode[0], "/v1/chat/completions", raw=b"{x")
    assert (malformed.status, malformed.json["type"]) == (400, "Bad Request")


def test_a_wrong_model_name_is_answered_as_sglang_answers_it(sim: Simulation) -> None:
    assert chat(sim.entry, *copying("77"), model="no-such-model").json["model"] == "no-such-model"


def test_bad_arguments_are_400(sim: Simulation) -> None:
    for wrong in ({"max_tokens": 0}, {"stop": 5}, {"n": 0}, {"n": "two"}):
        assert chat(sim.entry, "hello", **wrong).status == 400


def test_without_skill_the_answer_is_other_text_of_the_same_length() -> None:
    with start(model_skill="none") as sim:
        body = chat(sim.entry, *copying("481516"), max_tokens=12).json
    assert "481516" not in body["choices"][0]["message"]["content"]
    assert body["usage"]["completion_tokens"] == 12
