"""What real servers sent, read as a person would read it."""

from __future__ import annotations

import ast
import json
from typing import TYPE_CHECKING

import pytest

from pytest_pdserve.chat import Usage, read_reply
from pytest_pdserve.wire import Outcome
from tests.chat.exchanges import CAPTURES, asked, capture, exchange_of, from_raw, section

if TYPE_CHECKING:
    from pytest_pdserve.chat import Reply


def reply_to(raw: bytes, *, stream: bool = True, outcome: Outcome | None = None, reason: str = "") -> Reply:
    return read_reply(asked(stream=stream), from_raw(raw, outcome=outcome, reason=reason))


def test_vllm_stream_is_completed() -> None:
    reply = reply_to(capture("vllm/sse-chat.txt"))
    assert (reply.outcome, reply.reason, reply.waited_for) == (Outcome.COMPLETED, "", "done")
    assert reply.text == "The capital of France is Paris."
    assert reply.finish_reason == "stop"
    assert reply.usage == Usage(prompt=37, completion=8, cached=0)
    assert reply.model == "smollm2"
    assert reply.oddities == ()
    # The first event only says the role: it came after 0.5 s, the first token with the second event.
    assert reply.ttft == pytest.approx(0.6)
    assert reply.second_token == pytest.approx(0.1)
    assert len(reply.itl) == 6
    assert reply.e2e == pytest.approx(9.0)


def test_vllm_failed_transfer_is_refused_though_it_is_a_whole_200() -> None:
    reply = reply_to(capture("vllm/sse-kv-load-failure.txt"))
    assert reply.outcome is Outcome.REFUSED
    assert reply.reason == "an error event in a 200 stream: Internal server error (after 0 token events)"


def test_vllm_killed_decode_is_broken() -> None:
    reply = reply_to(
        capture("vllm/sse-decode-killed.txt"),
        outcome=Outcome.BROKEN,
        reason="connection closed after 16 kB of a chunked body",
    )
    assert reply.outcome is Outcome.BROKEN
    events = len(reply.choice.output_at)
    assert events == 53
    assert reply.reason == f"connection closed after 16 kB of a chunked body (after {events} token events)"
    assert reply.waited_for == f"token {events + 1}"
    assert reply.text.startswith("Once upon a time, there")
    assert reply.finish_reason is None


def test_the_same_bytes_with_a_clean_end_are_broken_too() -> None:
    reply = reply_to(capture("vllm/sse-decode-killed.txt"))
    assert reply.outcome is Outcome.BROKEN
    assert reply.reason == "the stream ended cleanly without [DONE] (after 53 token events)"
    assert reply.waited_for == "token 54"


@pytest.mark.parametrize(
    ("name", "finish"),
    [("named-strict", "stop"), ("required-nonstrict", "tool_calls"), ("required-strict", "tool_calls")],
)
def test_vllm_tool_stream_is_assembled(name: str, finish: str) -> None:
    reply = reply_to(capture(f"vllm/sse-tool-{name}.txt"))
    assert reply.outcome is Outcome.COMPLETED
    (call,) = reply.tool_calls
    assert (call.name, call.arguments) == ("get_weather", '"gaben"')
    assert call.id is not None
    assert call.id.startswith("chatcmpl-tool-")
    assert reply.finish_reason == finish
    assert reply.text == ""
    assert reply.ttft == pytest.approx(0.6)
    assert len(reply.itl) == 5


def test_vllm_truncated_tool_call_is_text() -> None:
    reply = reply_to(capture("vllm/json-tool-truncated.txt"), stream=False)
    assert reply.outcome is Outcome.COMPLETED
    assert reply.text == '<tool_call>\n{"name": "get_weather'
    assert reply.tool_calls == ()
    assert reply.finish_reason == "length"
    assert reply.usage == Usage(prompt=36, completion=24, cached=0)
    assert reply.ttft is None
    assert reply.itl == ()


def test_vllm_answer_after_a_tool_result() -> None:
    reply = reply_to(capture("vllm/json-tool-result-roundtrip.txt"), stream=False)
    assert reply.outcome is Outcome.COMPLETED
    assert reply.text.startswith("You can use the `@Inject`")


@pytest.mark.parametrize(
    ("status", "phrase", "text"),
    [
        (
            400,
            "Bad Request",
            "Failed to parse the request body as JSON: EOF while parsing a value at line 1 column 0",
        ),
        (422, "Unprocessable Entity", "missing field `messages` at line 1 column 55"),
        (500, "Internal Server Error", "Prefill server error: error sending request for url"),
    ],
)
def test_vllm_router_speaks_plain_text(status: int, phrase: str, text: str) -> None:
    exchange = exchange_of(
        text.encode(), status=status, kind="text/plain; charset=utf-8", reason=f"{status} {phrase}"
    )
    reply = read_reply(asked(), exchange)
    assert (reply.outcome, reply.reason) == (Outcome.REFUSED, f"{status} {phrase}: {text}")


def test_sglang_router_cut_error_is_refused_with_its_message() -> None:
    raw = capture("sglang-router/truncated-error.txt")
    reply = reply_to(raw[raw.index(b"HTTP/1.1 500") :].replace(b"[curl rc=0]", b""))
    assert (reply.outcome, reply.reason) == (
        Outcome.REFUSED,
        "500 Internal Server Error: boom from decode:41002",
    )


def test_sglang_role_and_content_in_one_delta_is_output() -> None:
    reply = reply_to(section("sglang-router/upstream-requests.txt", "chat stream"))
    assert reply.outcome is Outcome.COMPLETED
    assert reply.text == "D0 D1 D2 D3 D4 D5 D6 D7 "
    assert reply.ttft == pytest.approx(0.5)
    assert len(reply.itl) == 7
    assert reply.usage is None


@pytest.mark.parametrize("title", ["chat non-stream", "completions", "chat n=2", "wrong model"])
def test_sglang_whole_answers(title: str) -> None:
    reply = reply_to(section("sglang-router/upstream-requests.txt", title), stream=False)
    assert reply.outcome is Outcome.COMPLETED
    assert reply.text == "D0 D1 D2 D3 D4 D5 D6 D7"
    assert reply.usage == Usage(prompt=5, completion=8)


def test_sglang_generate_is_no_completion() -> None:
    reply = reply_to(section("sglang-router/upstream-requests.txt", "generate"), stream=False)
    assert reply.outcome is Outcome.GARBLED
    assert reply.reason.startswith(
        'the body (content-type application/octet-stream) is no completion: it has no choices: {"text":"D0'
    )


@pytest.mark.parametrize(
    ("title", "reason"),
    [
        (
            "bad json",
            "400 Bad Request: JSON syntax error: Failed to parse the request body as JSON: key must be a string at "
            "line 1 column 2",
        ),
        ("responses", "501 Not Implemented: Responses endpoint not implemented"),
    ],
)
def test_sglang_router_refusals(title: str, reason: str) -> None:
    reply = reply_to(section("sglang-router/upstream-requests.txt", title))
    assert (reply.outcome, reply.reason) == (Outcome.REFUSED, reason)


def test_sglang_router_dead_decode() -> None:
    lines = (CAPTURES / "sglang-router/faults.txt").read_text().splitlines()
    line = next(line for line in lines if line.startswith("== decode process DEAD True"))
    seen = ast.literal_eval(line.partition("True ")[2])
    exchange = exchange_of(
        seen["tail"].encode(), status=seen["status"], kind=seen["ct"], reason="502 Bad Gateway"
    )
    reply = read_reply(asked(), exchange)
    assert reply.reason == (
        "502 Bad Gateway: Decode server error: error sending request for url "
        "(http://127.0.0.1:41002/v1/chat/completions)"
    )


def test_dynamo_stream_with_usage_in_a_chunk_without_choices() -> None:
    reply = reply_to(section("dynamo/probe.txt", "stream"))
    assert reply.outcome is Outcome.COMPLETED
    assert reply.text == " gr kwargserge break"
    assert reply.usage == Usage(prompt=12, completion=4, cached=0)
    assert len(reply.choice.output_at) == 4


def test_dynamo_stream_with_nvext_and_named_events_without_data() -> None:
    reply = reply_to(section("dynamo/probe.txt", "nvext stream"))
    assert reply.outcome is Outcome.COMPLETED
    assert reply.text == " befowaitEY"
    assert reply.finish_reason == "length"
    assert reply.oddities == ()


def test_dynamo_whole_answers() -> None:
    assert reply_to(section("dynamo/probe.txt", "chat"), stream=False).text == " lo excead behstructured"
    for title in ("nvext nonstream", "completions"):
        body = section("dynamo/probe.txt", title)
        reply = read_reply(asked(stream=False), exchange_of(body, kind="application/json"))
        assert reply.outcome is Outcome.COMPLETED
        assert reply.usage is not None
        assert reply.usage.completion == 3


@pytest.mark.parametrize("title", ["unknown field", "wrong model", "bad json", "too long max"])
def test_dynamo_says_its_message_at_top_level(title: str) -> None:
    body, _, code = section("dynamo/probe.txt", title).rpartition(b"[")
    status = int(code.strip(b"]\n "))
    reply = read_reply(asked(), exchange_of(body, status=status, kind="application/json"))
    assert reply.outcome is Outcome.REFUSED
    assert reply.reason == f"{status} Something: {json.loads(body)['message']}"


def dynamo_faults() -> list[tuple[str, dict[str, object], str]]:
    """Every recorded answer of the fault runs: title, what was measured, the end of the body."""
    lines = (CAPTURES / "dynamo/faults.txt").read_text().splitlines()
    found = []
    for title, measured, tail in zip(lines, lines[1:], lines[2:], strict=False):
        if title.startswith("== ") and measured.startswith("   {"):
            found.append((title[3:], json.loads(measured), ast.literal_eval(tail.partition("tail=")[2])))
    return found


def test_dynamo_errors_are_refused_with_what_they_say() -> None:
    refused = [(seen, tail) for _, seen, tail in dynamo_faults() if seen["status"] in (404, 503, 504)]
    assert {seen["status"] for seen, _ in refused} == {404, 503, 504}
    for seen, tail in refused:
        status = int(str(seen["status"]))
        reply = read_reply(asked(), exchange_of(tail.encode(), status=status, kind=str(seen["ct"] or "")))
        said = json.loads(tail)["message"] if tail else "an empty body"
        assert (reply.outcome, reply.reason) == (Outcome.REFUSED, f"{status} Something: {said}")


def test_dynamo_killed_decode_is_refused_not_completed() -> None:
    _, _, tail = next(fault for fault in dynamo_faults() if fault[0] == "decode KILL midstream")
    body = tail.partition("\n\n")[2].encode()  # the recording begins in the middle of an event
    reply = read_reply(asked(), exchange_of(body))
    assert (reply.outcome, reply.reason) == (
        Outcome.REFUSED,
        "an error event in a 200 stream: Service temporarily unavailable (after 0 token events)",
    )


def test_dynamo_stopped_decode_hangs_in_mid_stream() -> None:
    _, seen, tail = next(fault for fault in dynamo_faults() if fault[0] == "decode STOP midstream")
    assert seen["exc"] == "TimeoutError: "
    body = tail[tail.index("data: ") :].encode()
    reason = "headers after 0.0 s, 3.1 kB in 10 chunks until 0.1 s, then nothing for 15.8 s"
    reply = read_reply(asked(), exchange_of(body, outcome=Outcome.HUNG, reason=reason))
    assert (reply.outcome, reply.reason) == (Outcome.HUNG, f"{reason}; 1 token event had come")
    assert reply.waited_for == "token 2"
