"""Whatever bytes a server sends, reading them raises nothing and gives exactly one outcome."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from pytest_pdserve.chat import read_reply
from pytest_pdserve.wire import Outcome
from tests.chat.exchanges import CAPTURES, SSE, asked, exchange_of, sse

KEYS = [
    "choices", "index", "delta", "message", "content", "text", "reasoning", "reasoning_content", "refusal",
    "tool_calls", "function", "name", "arguments", "id", "finish_reason", "usage", "prompt_tokens",
    "completion_tokens", "prompt_tokens_details", "cached_tokens", "error", "detail", "msg", "code", "object", "model",
]  # fmt: skip
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["stop", "error", "abort", "[DONE]", "\ud800", "\0"]),
)
ANY = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)
SAID = st.fixed_dictionaries(
    {},
    optional={
        "content": ANY,
        "reasoning": ANY,
        "tool_calls": ANY
        | st.lists(st.fixed_dictionaries({}, optional={"index": ANY, "id": ANY, "function": ANY})),
    },
)
CHUNK = st.fixed_dictionaries(
    {
        "choices": ANY
        | st.lists(
            st.fixed_dictionaries(
                {},
                optional={
                    "index": ANY,
                    "delta": SAID | ANY,
                    "message": SAID | ANY,
                    "text": ANY,
                    "finish_reason": ANY,
                },
            ),
            max_size=3,
        )
    },
    optional={"usage": ANY, "error": ANY, "model": ANY},
)
DOCUMENTS = CHUNK | ANY
CAPTURED = [path.read_bytes().partition(b"\r\n\r\n")[2] for path in sorted(CAPTURES.glob("vllm/*.txt"))]


@st.composite
def mutilated(draw: st.DrawFn) -> bytes:
    """A recorded answer, cut short, with a few bytes changed."""
    body = bytearray(draw(st.sampled_from(CAPTURED)))
    del body[draw(st.integers(0, len(body))) :]
    for _ in range(draw(st.integers(0, 4))):
        if body:
            body[draw(st.integers(0, len(body) - 1))] = draw(st.integers(0, 255))
    return bytes(body)


def encoded(document: Any) -> bytes:
    return json.dumps(document).encode()


BODIES = st.one_of(
    st.binary(max_size=60),
    DOCUMENTS.map(encoded),
    st.lists(DOCUMENTS | st.just("[DONE]"), max_size=5).map(lambda documents: sse(*documents)),
    st.lists(DOCUMENTS.map(encoded) | st.binary(max_size=20), max_size=4).map(
        lambda pieces: b"".join(b"data: " + piece + b"\n\n" for piece in pieces)
    ),
    mutilated(),
)


@given(
    body=BODIES,
    status=st.sampled_from([200, 200, 200, 201, 204, 400, 500, None]),
    kind=st.sampled_from([SSE, "application/json", "text/html", "", "\xff"]),
    stream=st.booleans(),
    outcome=st.sampled_from([None, Outcome.HUNG, Outcome.BROKEN, Outcome.GARBLED]),
)
def test_anything_is_read(
    body: bytes, status: int | None, kind: str, stream: bool, outcome: Outcome | None
) -> None:
    exchange = exchange_of(
        body, status=status, kind=kind, outcome=outcome, reason="" if outcome is None else "so"
    )
    reply = read_reply(asked(stream=stream), exchange)

    assert isinstance(reply.outcome, Outcome)
    assert (reply.outcome is Outcome.COMPLETED) == (reply.reason == "")
    assert "\n" not in reply.reason
    assert len(reply.reason) < 1000
    assert reply.waited_for
    if exchange.outcome is not Outcome.COMPLETED:
        assert not reply.completed
    if reply.completed:
        assert reply.choices
        assert all(choice.finish_reason is not None for choice in reply.choices)
    for choice in reply.choices:
        # What nobody could print, compare or write down would only fail later, and elsewhere.
        msgspec.json.encode((choice, reply.usage, reply.model, reply.oddities))
        assert list(choice.output_at) == sorted(choice.output_at)
    assert repr(reply)
