"""No text of a reply carries a secret, wherever a server echoes it, and half a secret neither."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import SecretStr

from pytest_pdserve.chat import read_reply
from pytest_pdserve.settings import Credential
from pytest_pdserve.wire import Outcome
from tests.chat.exchanges import SSE, asked, delta, exchange_of, sse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_pdserve.chat import Reply

KEY = "sk-Xq7Lm2Vw9Rt4Zp"
FRAGMENT = 6
MASK = "•••"
ENTRY = "http://router:30001"
CREDENTIAL = Credential(api_key=SecretStr(KEY), variable="KEY", entry=ENTRY)


def texts(thing: Any) -> Iterator[str]:
    """Every text in a reply, the request aside, which nobody but the caller wrote."""
    if isinstance(thing, str):
        yield thing
    elif dataclasses.is_dataclass(thing):
        for field in dataclasses.fields(thing):
            if field.name not in ("request", "body"):
                yield from texts(getattr(thing, field.name))
    elif isinstance(thing, list | tuple):
        for part in thing:
            yield from texts(part)


def fragments(text: str) -> list[str]:
    """The parts of the key, six characters or longer, that stand in a text."""
    return [
        KEY[at : at + FRAGMENT] for at in range(len(KEY) - FRAGMENT + 1) if KEY[at : at + FRAGMENT] in text
    ]


def assert_clean(reply: Reply) -> None:
    assert [text for text in texts(reply) if fragments(text)] == []
    assert fragments(repr(reply)) == []


def read(body: bytes, **options: Any) -> Reply:
    reply = read_reply(asked(), exchange_of(body, **options), mask=CREDENTIAL.mask)
    assert_clean(reply)
    return reply


def test_the_walk_finds_what_is_not_masked() -> None:
    reply = read_reply(asked(), exchange_of(sse(delta(content=KEY), delta(finish="stop"), "[DONE]")))
    assert [text for text in texts(reply) if fragments(text)] == [KEY]


def test_text_that_comes_in_pieces() -> None:
    reply = read(
        sse(delta(content="key " + KEY[:5]), delta(content=KEY[5:] + "!"), delta(finish="stop"), "[DONE]")
    )
    assert reply.completed
    assert reply.text == f"key {MASK}!"


def test_reasoning_and_tool_calls() -> None:
    call = {"index": 0, "id": KEY, "function": {"name": KEY, "arguments": '{"key": "' + KEY[:4]}}
    rest = {"index": 0, "function": {"arguments": KEY[4:] + '"}'}}
    reply = read(
        sse(
            delta(reasoning=KEY),
            delta(tool_calls=[call]),
            delta(tool_calls=[rest]),
            delta(finish="tool_calls"),
            "[DONE]",
        )
    )
    assert reply.completed
    assert reply.reasoning == MASK
    (made,) = reply.tool_calls
    assert (made.id, made.name, made.arguments) == (MASK, MASK, f'{{"key": "{MASK}"}}')


def test_model_finish_reason_and_oddities() -> None:
    ends = [{"model": KEY, "choices": [{"delta": {"content": "a"}, "finish_reason": KEY}]}] * 2
    reply = read(sse(*ends, {"choices": [], "usage": KEY}, "[DONE]") + f"data: {KEY}".encode())
    assert reply.completed
    assert (reply.model, reply.finish_reason) == (MASK, MASK)
    assert len(reply.oddities) == 4


@pytest.mark.parametrize(
    "body",
    [
        sse({"error": {"message": f"no key {KEY}"}}),
        sse(f"nothing {KEY}"),
        sse({"choices": KEY}),
        sse("[DONE]", KEY),
        b"event: error\n" + sse(KEY),
        f'{{"error": "{KEY}"}}'.encode(),
    ],
)
def test_errors_and_garbage_in_a_stream(body: bytes) -> None:
    assert MASK in read(body).reason


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        (f"wrong key: {KEY}".encode(), 401, "text/plain"),
        (f'{{"error": {{"message": "wrong key: {KEY}"}}}}'.encode(), 401, "application/json"),
        (f'{{"error": {{"message": "wrong key: {KEY}'.encode(), 401, "application/json"),
        (f"<html><title>{KEY}</title>".encode(), 502, "text/html"),
        (f"<html><title>{KEY}</title>".encode(), 200, "text/html"),
        (f"hello {KEY}".encode(), 200, f"text/plain; key={KEY}"),
    ],
)
def test_bodies(body: bytes, status: int, kind: str) -> None:
    assert MASK in read(body, status=status, kind=kind).reason


def test_headers_trailers_and_reason() -> None:
    reply = read(
        b"",
        headers=[("x-echo", f"Bearer {KEY}"), (KEY, "1")],
        trailers=[("x-key", KEY)],
        outcome=Outcome.BROKEN,
        reason=f"reset after {KEY}",
    )
    assert reply.exchange.header("x-echo") == f"Bearer {MASK}"
    assert reply.exchange.trailers == (("x-key", MASK),)


@pytest.mark.parametrize("kind", [SSE, "text/plain", "application/json", "text/html"])
@pytest.mark.parametrize("status", [200, 500])
def test_no_half_of_it_remains_where_a_text_is_cut(status: int, kind: str) -> None:
    for before in [*range(283, 301), *range(1183, 1201)]:
        for filler in ("x", " "):
            text = filler * before + KEY + "y" * 50
            read(text.encode(), status=status, kind=kind)
            read(sse({"error": {"message": text}}), status=status, kind=kind)
            read(json.dumps({"error": {"message": text}}).encode(), status=status, kind=kind)
            read(sse(text), status=status, kind=kind)


def test_an_escaped_key_in_what_is_cut_off_json() -> None:
    credential = Credential(api_key=SecretStr('sk-"quoted"-0123'), entry=ENTRY)
    body = b'{"error": {"message": "wrong: sk-\\"quoted\\"-0123'
    for whole in (body, body + b'"}', body + b'"}}'):
        exchange = exchange_of(whole, status=401, kind="application/json")
        assert "quoted" not in read_reply(asked(), exchange, mask=credential.mask).reason
