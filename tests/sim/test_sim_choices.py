"""Several answers to one request, and log probabilities, in both dialects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from simclient import Answer, call, chat, copying, eventually, gauge

from pytest_pdserve.sim.launch import Simulation, start

if TYPE_CHECKING:
    from collections.abc import Iterator

EOS = "<|im_end|>"


@pytest.fixture(scope="module", params=["sglang", "vllm"])
def either(request: pytest.FixtureRequest) -> Iterator[Simulation]:
    with start(dialect=request.param) as simulation:
        yield simulation


def ask(sim: Simulation, **more: Any) -> Answer:
    return chat(sim.entry, *copying("481516"), **{"model": sim.model, "temperature": 1, **more})


def complete(sim: Simulation, **more: Any) -> Any:
    body = {"model": sim.model, "prompt": "code: 481516", "max_tokens": 4, **more}
    return call(sim.entry, "/v1/completions", body).json


def test_each_answer_has_its_index_and_counts(either: Simulation) -> None:
    body = ask(either, n=3).json
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert {choice["message"]["content"] for choice in body["choices"]} == {"481516"}
    assert body["usage"]["completion_tokens"] == 3 * ask(either).json["usage"]["completion_tokens"]


def test_streamed_answers_are_told_apart_and_end_once(either: Simulation) -> None:
    chunks = ask(either, n=3, stream=True, stream_options={"include_usage": True}).chunks
    *said, usage = chunks
    texts = {0: "", 1: "", 2: ""}
    finished = []
    for chunk in said:
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["delta"].get("content") or ""
        finished += [choice["index"]] if choice["finish_reason"] else []
    assert set(texts.values()) == {"481516"}
    assert sorted(finished) == [0, 1, 2]
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 9)


def test_every_answer_gives_its_kv_back(either: Simulation) -> None:
    for stream in (True, False):
        assert ask(either, n=4, stream=stream).status == 200
    name = "sglang:num_used_tokens" if either.dialect == "sglang" else "vllm:kv_cache_usage_perc"
    assert eventually(lambda: all(gauge(url, name) == 0 for url in (*either.prefill, *either.decode)))


def test_vllm_refuses_several_greedy_answers() -> None:
    with start(dialect="vllm") as sim:
        refused = ask(sim, n=2, temperature=0)
    assert (refused.status, refused.json["error"]["type"]) == (400, "BadRequestError")


def test_chat_logprobs_have_one_entry_a_token(either: Simulation) -> None:
    body = ask(either, logprobs=True, top_logprobs=2).json
    entries = body["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in entries] == ["481", "516", EOS]
    assert len(entries) == body["usage"]["completion_tokens"]
    for entry in entries:
        assert entry["logprob"] <= 0
        assert bytes(entry["bytes"]).decode() == entry["token"]
        assert [other["token"] for other in entry["top_logprobs"]] == [entry["token"], " alt1"]


def test_streamed_logprobs_are_the_same(either: Simulation) -> None:
    whole = ask(either, logprobs=True).json["choices"][0]["logprobs"]["content"]
    chunks = ask(either, logprobs=True, stream=True).chunks
    blocks = [choice["logprobs"] for chunk in chunks for choice in chunk["choices"]]
    assert [entry for block in blocks if block for entry in block["content"]] == whole


def test_a_character_over_two_tokens_has_both_entries(either: Simulation) -> None:
    answer = chat(either.entry, "word: é", "é", "word: 語", model=either.model, logprobs=True, stream=True)
    blocks = [choice["logprobs"] for chunk in answer.chunks for choice in chunk["choices"]]
    tokens = [entry for block in blocks if block for entry in block["content"]]
    assert b"".join(bytes(entry["bytes"]) for entry in tokens[:-1]) == "語".encode()
    assert len(tokens) == 3


def test_completion_logprobs(either: Simulation) -> None:
    block = complete(either, logprobs=2)["choices"][0]["logprobs"]
    assert block["tokens"] == ["481", "516", EOS]
    assert block["text_offset"] == [0, 3, 6]
    assert all(value <= 0 for value in block["token_logprobs"])
    assert [len(top) for top in block["top_logprobs"]] == [2, 2, 2]
    assert complete(either)["choices"][0]["logprobs"] is None


def test_top_logprobs_need_logprobs(either: Simulation) -> None:
    assert ask(either, top_logprobs=2).status == 400
