"""Faults that only some request shapes meet: each one's effect, and health once it is gone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from simclient import Answer, chat, copying, eventually, gauge

from pytest_pdserve.sim.launch import Simulation

WAIT_S = 0.7
PLACE = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "n": {"type": "integer"}},
    "required": ["city", "n"],
}
TOOL = {"type": "function", "function": {"name": "look_at", "description": "", "parameters": PLACE}}
ONE = 'Call look_at with {"city": "Reykjavik", "n": 12}.'
TWO = f'{ONE} Call look_at with {{"city": "Oslo", "n": 3}}.'


def called(sim: Simulation, text: str) -> tuple[list[str], str, str | None]:
    """Arguments of each call, the finish reason, and the text."""
    choice = chat(sim.entry, text, tools=[TOOL], max_tokens=300).json["choices"][0]
    calls = choice["message"]["tool_calls"] or []
    return (
        [call["function"]["arguments"] for call in calls],
        choice["finish_reason"],
        choice["message"]["content"],
    )


def valid(arguments: str) -> bool:
    try:
        return bool(json.loads(arguments) == {"city": "Reykjavik", "n": 12})
    except ValueError:
        return False


@pytest.fixture
def strike(sim: Simulation) -> Iterator[Callable[..., Simulation]]:
    def set_faults(*texts: str) -> Simulation:
        sim.set_faults(*texts)
        return sim

    yield set_faults
    sim.set_faults()
    (arguments,), finish, content = called(sim, ONE)
    assert (valid(arguments), finish, content) == (True, "tool_calls", None)
    assert len(answers(sim, n=2).json["choices"]) == 2
    assert eventually(lambda: gauge(sim.decode[0], "sglang:num_used_tokens") == 0)


Strike = Callable[..., Simulation]


def answers(sim: Simulation, **more: Any) -> Answer:
    return chat(sim.entry, *copying("481516"), **more)


def test_n_hang(strike: Strike) -> None:
    sim = strike("n-hang")
    assert answers(sim).text == "481516"
    with pytest.raises(TimeoutError):
        answers(sim, n=2, timeout_s=WAIT_S)


def test_the_first_logprob_is_missing(strike: Strike) -> None:
    def count(sim: Simulation) -> tuple[int, int]:
        body = answers(sim, logprobs=True).json
        return len(body["choices"][0]["logprobs"]["content"]), body["usage"]["completion_tokens"]

    assert count(strike()) == (3, 3)
    assert count(strike("logprobs-first-missing")) == (2, 3)


def test_arguments_are_corrupted(strike: Strike) -> None:
    (arguments,), finish, _ = called(strike("tool-arguments-corrupted"), ONE)
    assert (valid(arguments), finish) == (False, "tool_calls")
    assert answers(strike("tool-arguments-corrupted")).text == "481516"


def test_markers_leak(strike: Strike) -> None:
    calls, finish, content = called(strike("tool-markers-leak"), ONE)
    assert (calls, finish) == ([], "stop")
    assert content is not None
    assert content.startswith("<tool_call>")


def test_a_truncated_call_counts_as_complete(strike: Strike) -> None:
    (arguments,), finish, _ = called(strike("tool-truncated"), ONE)
    assert finish == "tool_calls"
    assert '{"city": "Reykjavik"'.startswith(arguments)


def test_parallel_calls_are_dropped(strike: Strike) -> None:
    assert len(called(strike(), TWO)[0]) == 2
    assert len(called(strike("parallel-calls-dropped"), TWO)[0]) == 1


def test_a_schema_is_ignored(strike: Strike) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": PLACE}}

    def said(sim: Simulation) -> str:
        return chat(sim.entry, "city: Oslo, n: 3", response_format=form).text

    assert json.loads(said(strike())) == {"city": "Oslo", "n": 3}
    assert not said(strike("schema-ignored")).startswith("{")
