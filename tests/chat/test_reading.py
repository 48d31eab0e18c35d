"""The rules by which a body becomes exactly one outcome."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_pdserve.chat import Usage, error_text, read_reply
from pytest_pdserve.wire import Outcome
from tests.chat.exchanges import asked, delta, exchange_of, read, read_body, sse

ROLE = delta(role="assistant", content="")
END = delta(finish="stop")
DONE = "[DONE]"
USAGE = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}}


def message(finish: str | None = "stop", **said: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "message": said, "finish_reason": finish}]}


# How a stream ends


def test_done_missing_is_broken() -> None:
    reply = read(ROLE, delta(content="a"), delta(content="b"))
    assert (reply.outcome, reply.reason, reply.waited_for) == (
        Outcome.BROKEN,
        "the stream ended cleanly without [DONE] (after 2 token events)",
        "token 3",
    )
    assert reply.text == "ab"


def test_done_missing_after_the_finish_reason_is_broken() -> None:
    reply = read(delta(content="a"), END)
    assert (reply.outcome, reply.waited_for) == (Outcome.BROKEN, "[DONE]")


def test_finish_reason_missing_is_broken() -> None:
    reply = read(delta(content="a"), DONE)
    assert (reply.outcome, reply.reason) == (
        Outcome.BROKEN,
        "no finish_reason in choice 0 (after 1 token event and [DONE])",
    )


@pytest.mark.parametrize("finish", ["error", "abort"])
@pytest.mark.parametrize("end", [(DONE,), ()])
def test_a_finish_reason_that_says_failure_is_refused(finish: str, end: tuple[str, ...]) -> None:
    reply = read(delta(content="a"), delta(finish=finish), *end)
    assert reply.outcome is Outcome.REFUSED
    assert reply.reason.startswith(f'a 200 with finish_reason "{finish}" (after 1 token event')


def test_an_unstreamed_failure_without_content_is_refused() -> None:
    # vLLM behind a gRPC router: 200, finish_reason "error", no content, no tokens (smg issue 2382).
    reply = read_body({**message("error", role="assistant"), "usage": {"prompt_tokens": 9}})
    assert (reply.outcome, reply.reason) == (Outcome.REFUSED, 'a 200 with finish_reason "error"')


def test_an_event_after_done_is_garbled() -> None:
    reply = read(delta(content="a"), END, DONE, delta(content="b"))
    assert reply.outcome is Outcome.GARBLED
    assert reply.reason.startswith('event 4 came after [DONE]: {"model": "m"')
    assert reply.text == "a"


def test_a_comment_after_done_is_fine() -> None:
    body = sse(delta(content="a"), END, DONE) + b": bye\n\n"
    assert read_reply(asked(), exchange_of(body)).completed


def test_an_event_that_is_no_json_is_garbled() -> None:
    reply = read(delta(content="a"), '{"choices": [', DONE)
    assert (reply.outcome, reply.reason) == (Outcome.GARBLED, 'event 2 is not JSON: {"choices": [')


def test_an_unterminated_event_at_the_end_is_told() -> None:
    reply = read_reply(asked(), exchange_of(sse(delta(content="a")) + b'data: {"choi'))
    assert reply.outcome is Outcome.BROKEN
    assert reply.oddities == ('the stream ends inside an event: data: {"choi',)


def test_not_utf8_is_garbled() -> None:
    reply = read_reply(asked(), exchange_of(sse(delta(content="a")) + b"data: \xff\n\n"))
    assert reply.outcome is Outcome.GARBLED
    assert "not UTF-8" in reply.reason


def test_an_empty_stream_is_broken() -> None:
    reply = read_reply(asked(), exchange_of(b""))
    assert (reply.outcome, reply.reason, reply.waited_for) == (
        Outcome.BROKEN,
        "the stream ended cleanly without [DONE] (after 0 token events)",
        "first token",
    )


def test_only_done_is_garbled() -> None:
    assert (read(DONE).outcome, read(DONE).reason) == (Outcome.GARBLED, "no choices in the answer")


def test_a_reset_after_done_is_broken_and_says_that_the_answer_was_whole() -> None:
    pieces = sse(delta(content="a"), END, DONE)
    reply = read_reply(asked(), exchange_of(pieces, outcome=Outcome.BROKEN, reason="connection reset"))
    assert (reply.outcome, reply.reason, reply.waited_for) == (
        Outcome.BROKEN,
        "connection reset (after 1 token event and [DONE])",
        "the end of the response after [DONE]",
    )


# What counts as output


def test_role_usage_and_empty_deltas_are_no_output() -> None:
    reply = read(
        ROLE, delta(content=""), delta(content=None, tool_calls=[]), delta(content="a"), END, USAGE, DONE
    )
    assert reply.completed
    assert len(reply.choice.output_at) == 1
    assert reply.ttft == pytest.approx(1.3)
    assert reply.second_token is None
    assert reply.itl == ()
    assert reply.usage == Usage(prompt=5, completion=2)


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_counts(name: str) -> None:
    reply = read(ROLE, delta(**{name: "let me "}), delta(**{name: "see"}), delta(content="4"), END, DONE)
    assert reply.completed
    assert (reply.reasoning, reply.text) == ("let me see", "4")
    assert reply.ttft == pytest.approx(1.1)
    assert reply.second_token == pytest.approx(0.1)


def test_a_refusal_of_the_model_is_its_text() -> None:
    reply = read(delta(refusal="I can't"), END, DONE)
    assert (reply.outcome, reply.text) == (Outcome.COMPLETED, "I can't")


def test_parallel_tool_calls_interleave_by_index() -> None:
    def piece(index: int, arguments: str, **more: Any) -> dict[str, Any]:
        name = more.pop("name", None)
        return delta(
            tool_calls=[{"index": index, "function": {"name": name, "arguments": arguments}, **more}]
        )

    reply = read(
        piece(1, "", id="b", name="second"),
        piece(0, "", id="a", name="first"),
        piece(0, '{"x":'),
        piece(1, '{"y":'),
        piece(1, "2}"),
        piece(0, "1}"),
        delta(finish="tool_calls"),
        DONE,
    )
    assert reply.completed
    assert [(call.id, call.name, call.arguments) for call in reply.tool_calls] == [
        ("a", "first", '{"x":1}'),
        ("b", "second", '{"y":2}'),
    ]
    assert len(reply.choice.output_at) == 6


def test_unstreamed_tool_calls_have_no_index() -> None:
    calls = [
        {"id": str(number), "type": "function", "function": {"name": f"f{number}", "arguments": "{}"}}
        for number in range(2)
    ]
    reply = read_body(message("tool_calls", content=None, tool_calls=calls))
    assert reply.completed
    assert [call.name for call in reply.tool_calls] == ["f0", "f1"]


def test_two_choices_in_one_stream() -> None:
    reply = read(
        delta(1, content="B"),
        delta(0, content="A"),
        delta(1, content="b"),
        delta(0, content="a"),
        delta(0, "stop"),
        delta(1, "length"),
        DONE,
        n=2,
    )
    assert reply.completed
    assert [(choice.index, choice.text, choice.finish_reason) for choice in reply.choices] == [
        (0, "Aa", "stop"),
        (1, "Bb", "length"),
    ]
    assert reply.ttft == pytest.approx(1.1)


def test_one_of_two_choices_without_an_end_is_broken() -> None:
    reply = read(delta(0, content="A"), delta(1, content="B"), delta(0, "stop"), DONE, n=2)
    assert reply.reason == "no finish_reason in choice 1 (after 2 token events and [DONE])"


def test_a_plain_completion_says_text() -> None:
    first = {"choices": [{"index": 0, "text": "a", "finish_reason": None}]}
    last = {"choices": [{"index": 0, "text": "b", "finish_reason": "stop"}]}
    assert read(first, last, DONE).text == "ab"
    assert read_body(last).text == "b"


# Nothing said


def test_no_content_and_no_tool_calls_is_garbled() -> None:
    reply = read_body(message(content=None))
    assert (reply.outcome, reply.reason) == (
        Outcome.GARBLED,
        "a 200 without any content, and no output tokens counted",
    )
    zero = {"usage": {"prompt_tokens": 3, "completion_tokens": 0}}
    assert read_body({**message(content=""), **zero}).outcome is Outcome.GARBLED


def test_an_end_at_once_that_was_counted_is_completed() -> None:
    one = {"usage": {"prompt_tokens": 3, "completion_tokens": 1}}
    assert read_body({**message(content=None), **one}).completed


# The wrong kind of answer


def test_a_whole_body_for_a_stream_is_garbled() -> None:
    reply = read_body(message(content="hi"), stream=True)
    assert (reply.outcome, reply.reason) == (
        Outcome.GARBLED,
        "a stream was asked for, one JSON body came",
    )
    assert reply.text == "hi"


def test_a_stream_for_a_whole_body_is_garbled() -> None:
    reply = read(delta(content="hi"), END, DONE, stream=False)
    assert (reply.outcome, reply.reason) == (Outcome.GARBLED, "one JSON body was asked for, a stream came")


def test_a_mislabelled_stream_is_read_and_told() -> None:
    body = b": warming up\n\n" + sse(delta(content="hi"), END, DONE)
    reply = read_reply(asked(), exchange_of(body, kind="text/plain"))
    assert reply.completed
    assert reply.ttft is not None
    assert reply.oddities == ("an event stream is labelled content-type text/plain",)


def test_json_that_is_labelled_a_stream_is_read_as_json() -> None:
    reply = read_reply(asked(), exchange_of(b'{"error": {"message": "no room"}}'))
    assert (reply.outcome, reply.reason) == (Outcome.REFUSED, "an error in the body of a 200: no room")


@pytest.mark.parametrize(
    ("body", "kind", "reason"),
    [
        (
            b"<!DOCTYPE html>\n<html><head><title>Sign  in</title></head>",
            "text/html",
            'the body (content-type text/html) is not JSON: an HTML page titled "Sign in"',
        ),
        (b"<html><body>hi", "text/html", "the body (content-type text/html) is not JSON: an HTML page"),
        (b"", "application/json", "the body (content-type application/json) is not JSON: nothing"),
        (b"\0\0\0", "", "the body (content-type none) is not JSON: \\x00\\x00\\x00"),
        (b"OK", "text/plain", "the body (content-type text/plain) is not JSON: OK"),
        (
            b'"\xff"',
            "x/y",
            'the body (content-type x/y) is no completion: Expected `object`, got `str`: "\ufffd"',
        ),
        (
            b'{"a":"\xff"}',
            "x/y",
            'the body (content-type x/y) is no completion: it has no choices: {"a":"\ufffd"}',
        ),
        (
            b"[1, 2]",
            "x/y",
            "the body (content-type x/y) is no completion: Expected `object`, got `array`: [1, 2]",
        ),
        (b"null", "x/y", "the body (content-type x/y) is no completion: Expected `object`, got `null`: null"),
        (
            b'{"choices": null}',
            "x/y",
            'the body (content-type x/y) is no completion: it has no choices: {"choices": null}',
        ),
        (b'{"choices": []}', "x/y", "no choices in the answer"),
        (
            b'{"choices": [{"message": {"content": 5}}]}',
            "x/y",
            "the body (content-type x/y) is no completion: Expected `str | null`, got `int` - at "
            '`$.choices[0].message.content`: {"choices": [{"message": {"content": 5}}]}',
        ),
    ],
)
def test_bodies_that_are_no_answer_are_garbled(body: bytes, kind: str, reason: str) -> None:
    reply = read_body(body, kind=kind)
    assert (reply.outcome, reply.reason) == (Outcome.GARBLED, reason)


def test_content_in_parts_is_garbled_and_says_where() -> None:
    reply = read(delta(content=[{"type": "text", "text": "a"}]), END, DONE)
    assert reply.outcome is Outcome.GARBLED
    assert reply.reason.startswith(
        "event 1 is no completion: Expected `str | null`, got `array` - at `$.choices[0].delta.content`: {"
    )


def test_deep_json_is_garbled() -> None:
    deep = b'{"choices":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    for inner in (deep, deep.replace(b"choices", b"usage"), deep.replace(b"choices", b"error")):
        reply = read_body(inner)
        assert reply.outcome is Outcome.GARBLED
        assert len(reply.reason) < 500
        assert read_body(inner, status=500).outcome is Outcome.REFUSED
        stream = read_reply(asked(), exchange_of(b"data: " + inner + b"\n\n"))
        assert stream.outcome is Outcome.GARBLED


def test_a_huge_text_is_cut_where_it_is_shown() -> None:
    reply = read_body(b"x" * 5_000_000, kind="text/plain")
    assert reply.reason.endswith("x…")
    assert len(reply.reason) < 400
    assert len(read(delta(content="a"), delta(finish="y" * 100_000), DONE).finish_reason or "") == 300


# Errors in a 200


@pytest.mark.parametrize(
    "error",
    [
        {"error": {"message": "no room", "type": "x", "code": 500}},
        {"error": "no room"},
        {"error": {"code": 500}, "message": "no room"},
        {"error": {"message": {"object": "error", "message": "no room"}}},
        {"object": "error", "message": "no room", "code": 400},
        {"message": "no room", "type": "Service Unavailable", "code": 503},
        {"error": {"message": "no room"}, "choices": None},
        {"error": {"message": "no room"}, "choices": 3},
        {"error": [{"msg": "no"}, {"msg": "room"}]},
    ],
)
def test_errors_of_every_shape_are_refused(error: dict[str, Any]) -> None:
    said = "no; room" if isinstance(error.get("error"), list) else "no room"
    streamed = read(ROLE, error, DONE)
    assert (streamed.outcome, streamed.reason) == (
        Outcome.REFUSED,
        f"an error event in a 200 stream: {said} (after 0 token events)",
    )
    whole = read_body(error)
    assert (whole.outcome, whole.reason) == (Outcome.REFUSED, f"an error in the body of a 200: {said}")


def test_an_error_without_a_message_is_shown_itself() -> None:
    assert (
        read_body({"error": {"code": 17}}).reason == 'an error in the body of a 200: {"error": {"code": 17}}'
    )


def test_an_event_named_error_is_refused_whatever_it_says() -> None:
    body = sse(delta(content="a")) + b"event: error\ndata: out of memory\n\n"
    reply = read_reply(asked(), exchange_of(body))
    assert (reply.outcome, reply.reason) == (
        Outcome.REFUSED,
        "an error event in a 200 stream: out of memory (after 1 token event)",
    )


def test_a_greeting_is_no_refusal() -> None:
    assert read_body({"message": "Welcome"}).outcome is Outcome.GARBLED


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (
            b'{"detail": [{"loc": ["body"], "msg": "field required"}, {"msg": "too long"}]}',
            "field required; too long",
        ),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b'{"error": true, "message": "late"}', "late"),
        (b"<html><title>502 Bad Gateway</title>", 'an HTML page titled "502 Bad Gateway"'),
        (b'data: {"error": {"message": "a \\"b\\"\\n c"}}\n\ndata: [DONE]\n\n', 'a "b" c'),
        (b'{"message": "\\ud800 half a pair"', "\\ud800 half a pair"),
        (b"\x1b[31mred\x00\xff", "\\x1b[31mred\\x00\ufffd"),
        (b"", "nothing"),
        (b"{}", "{}"),
        (b'{"message": "caf\xe9"}', "caf\ufffd"),
        (
            b'{"error":' * 6 + b'{"message": "deep"}' + b"}" * 6,
            '{"error":' * 6 + '{"message": "deep"}' + "}" * 6,
        ),
    ],
)
def test_error_texts(body: bytes, text: str) -> None:
    assert error_text(body) == text


# Departures that don't spoil the answer


@pytest.mark.parametrize(
    "usage",
    [
        7,
        "many",
        {"prompt_tokens": "5"},
        {"completion_tokens": 5},
        {"prompt_tokens": -1},
        {"prompt_tokens": 10**30},
        {"prompt_tokens": 5.5},
        {"prompt_tokens": 5, "prompt_tokens_details": 3},
    ],
)
def test_malformed_usage_is_an_oddity(usage: object) -> None:
    reply = read(delta(content="a"), END, {"choices": [], "usage": usage}, DONE)
    assert reply.completed
    assert reply.usage is None
    (oddity,) = reply.oddities
    assert oddity.startswith("usage is malformed: ")


def test_usage_that_comes_with_every_chunk_counts_at_its_last() -> None:
    first = {**delta(content="a"), "usage": {"prompt_tokens": 5, "completion_tokens": 1}}
    last = {"choices": [], "usage": None}
    assert read(first, END, USAGE, last, DONE).usage == Usage(prompt=5, completion=2)
    assert read(first, END, last, DONE).usage == Usage(prompt=5, completion=1)


def test_more_after_the_finish_reason_is_an_oddity() -> None:
    reply = read(delta(content="a"), END, delta(content="b"), delta(finish="length"), DONE)
    assert reply.completed
    assert reply.oddities == (
        "output came after finish_reason 'stop'",
        "a second finish_reason: 'stop', then 'length'",
    )


def test_oddities_are_bounded() -> None:
    ends = [delta(finish=f"stop{number}") for number in range(50)]
    assert len(read(delta(content="a"), *ends, DONE).oddities) == 10


# Hangs


@pytest.mark.parametrize(
    ("events", "adds", "waited_for"),
    [
        ((), "", "first token"),
        ((ROLE,), "; no token came", "first token"),
        ((ROLE, delta(content="a")), "; 1 token event had come", "token 2"),
        ((ROLE, delta(content="a"), delta(content="b")), "; 2 token events had come", "token 3"),
        ((delta(content="a"), END), "; 1 token event had come", "[DONE]"),
        (
            (delta(content="a"), END, DONE),
            "; the answer was whole, the response never ended",
            "the end of the response after [DONE]",
        ),
        (
            ({"error": {"message": "no room"}},),
            "; it had said an error: no room",
            "first token",
        ),
    ],
)
def test_hangs_say_how_far_it_came(events: tuple[object, ...], adds: str, waited_for: str) -> None:
    exchange = exchange_of(sse(*events), outcome=Outcome.HUNG, reason="headers after 0.0 s, then nothing")
    reply = read_reply(asked(), exchange)
    assert (reply.outcome, reply.reason, reply.waited_for) == (
        Outcome.HUNG,
        "headers after 0.0 s, then nothing" + adds,
        waited_for,
    )
    assert reply.e2e is None


def test_a_hang_before_headers_is_the_wire_s_own_words() -> None:
    exchange = exchange_of(
        b"", status=None, outcome=Outcome.HUNG, reason="sent after 0.0 s, then nothing for 30.0 s"
    )
    reply = read_reply(asked(), exchange)
    assert (reply.reason, reply.waited_for) == ("sent after 0.0 s, then nothing for 30.0 s", "headers")


def test_a_refused_connection_is_broken() -> None:
    exchange = exchange_of(b"", status=None, outcome=Outcome.BROKEN, reason="connection refused")
    reply = read_reply(asked(), exchange)
    assert (reply.outcome, reply.reason) == (Outcome.BROKEN, "connection refused")


def test_fields_that_nobody_reads_may_be_anything() -> None:
    answer = {**message(content="a"), "id": 7, "created": "now", "system_fingerprint": [1], "nvext": {"x": 1}}
    assert read_body(answer).completed
