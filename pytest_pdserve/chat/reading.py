"""An exchange read as an answer: what HTTP calls complete may still be no answer at all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from pytest_pdserve.chat.reply import Choice, Reply, ToolCall, Usage
from pytest_pdserve.wire import Outcome, read_events

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_pdserve.chat.request import ChatRequest
    from pytest_pdserve.wire import Event, Exchange

TERMINAL = "[DONE]"
# Finish reasons by which engines say in a 200 that they failed (failures.md rows A4, H10).
FAILED_FINISHES = frozenset({"error", "abort"})
CUT = 300


def read_reply(
    request: ChatRequest,
    exchange: Exchange,
    *,
    mask: Callable[[str], str] = str,
    evidence: Sequence[str] = (),
) -> Reply:
    """Read `exchange` as the answer to `request`; every text in it has gone through `mask`.

    The outcome is the wire's unless the wire calls it completed; then the body decides. Of a 200:
    `refused` says an error in the body or in finish_reason, `broken` ended without its terminal event or a
    finish reason, `garbled` is not the protocol or holds no content.
    """
    answer = _Answer(mask=mask)
    if exchange.status is not None and exchange.status < 300:
        if _header(exchange, "content-type").startswith("text/event-stream"):
            _read_stream(answer, exchange)
        elif exchange.outcome is Outcome.COMPLETED:
            _read_document(answer, exchange)
    outcome, reason, waited_for = _judge(request, exchange, answer)
    return Reply(
        request=request,
        exchange=exchange,
        outcome=outcome,
        reason=mask(reason),
        waited_for=waited_for,
        choices=answer.finished_choices(),
        usage=answer.usage,
        model=answer.model,
        oddities=tuple(answer.oddities),
        evidence=tuple(mask(line) for line in evidence),
    )


def error_text(body: bytes) -> str:
    """What an error body says, in at most 300 characters: its message where it is JSON, else its start."""
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return cut(body.decode("utf-8", "replace"))
    return cut(_message_of(document) or body.decode("utf-8", "replace"))


def cut(text: str) -> str:
    """`text` on one line, control characters shown as such, at most 300 characters."""
    flat = "".join(_visible(character) for character in " ".join(text[: 4 * CUT].split()))
    return flat if len(flat) <= CUT else flat[: CUT - 1] + "…"


def _visible(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")


@dataclass(slots=True)
class _Draft:
    """A choice while its pieces come in."""

    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: dict[int, dict[str, str | None]] = field(default_factory=dict)
    finish_reason: str | None = None
    output_at: list[float] = field(default_factory=list)


@dataclass(slots=True)
class _Answer:
    """What a body has said so far."""

    mask: Callable[[str], str]
    drafts: dict[int, _Draft] = field(default_factory=dict)
    usage: Usage | None = None
    model: str | None = None
    oddities: list[str] = field(default_factory=list)
    terminal: bool = False
    streamed: bool = False
    error: str | None = None
    garbled: str | None = None

    def finished_choices(self) -> tuple[Choice, ...]:
        return tuple(
            Choice(
                index=index,
                text=self.mask("".join(draft.text)),
                reasoning=self.mask("".join(draft.reasoning)),
                tool_calls=tuple(
                    ToolCall(
                        id=call["id"], name=call["name"] or "", arguments=self.mask(call["arguments"] or "")
                    )
                    for _, call in sorted(draft.calls.items())
                ),
                finish_reason=draft.finish_reason,
                output_at=tuple(draft.output_at),
            )
            for index, draft in sorted(self.drafts.items())
        )


def _header(exchange: Exchange, name: str) -> str:
    return next((value for key, value in exchange.headers if key.lower() == name), "").lower()


def _read_stream(answer: _Answer, exchange: Exchange) -> None:
    answer.streamed = True
    stream = read_events(exchange.body)
    for number, event in enumerate(stream.events, start=1):
        if answer.terminal:
            answer.garbled = f"event {number} came after {TERMINAL}"
            return
        if event.data == TERMINAL:
            answer.terminal = True
        else:
            _read_event(answer, number, event)
        if answer.garbled:
            return
    answer.garbled = stream.error
    if stream.rest and answer.garbled is None:
        answer.oddities.append(f"the stream ends inside an event: {cut(stream.rest)}")


def _read_event(answer: _Answer, number: int, event: Event) -> None:
    try:
        document = msgspec.json.decode(event.data)
    except msgspec.DecodeError:
        answer.garbled = f"event {number} is not JSON: {cut(event.data)}"
        return
    try:
        _read_chunk(answer, document, event.at)
    except (AttributeError, KeyError, TypeError, ValueError):
        answer.garbled = f"event {number} is not a completion chunk: {cut(event.data)}"


def _read_document(answer: _Answer, exchange: Exchange) -> None:
    body = bytes(exchange.body.data)
    kind = _header(exchange, "content-type") or "none"
    try:
        document = msgspec.json.decode(body)
    except msgspec.DecodeError:
        what = "HTML" if "html" in kind else "not JSON"
        start = cut(body.decode("utf-8", "replace")) or "nothing"
        answer.garbled = f"the body is {what} (content-type {kind}): {start}"
        return
    try:
        _read_chunk(answer, document, None)
    except (AttributeError, KeyError, TypeError, ValueError):
        answer.garbled = f"the body is JSON but no completion: {cut(body.decode('utf-8', 'replace'))}"


def _read_chunk(answer: _Answer, document: Any, at: float | None) -> None:
    """One chunk of a stream (`at` is its arrival), or a whole unstreamed answer (`at` is None)."""
    error = document.get("error")
    if error:
        answer.error = answer.error or _message_of(document) or str(error)
        return
    answer.model = document.get("model") or answer.model
    if usage := document.get("usage"):
        answer.usage = _usage(usage)
    for choice in document["choices"]:
        draft = answer.drafts.setdefault(int(choice.get("index", 0)), _Draft())
        said = choice.get("delta") or choice.get("message") or {}
        text = said.get("content") or choice.get("text") or ""
        reasoning = said.get("reasoning_content") or said.get("reasoning") or ""
        calls = said.get("tool_calls") or []
        draft.text.append(text)
        draft.reasoning.append(reasoning)
        for call in calls:
            _read_call(draft, call)
        if at is not None and (text or reasoning or calls):
            draft.output_at.append(at)
        if finish := choice.get("finish_reason"):
            if draft.finish_reason is not None:
                answer.oddities.append(f"a second finish_reason: {draft.finish_reason}, then {finish}")
            draft.finish_reason = str(finish)


def _read_call(draft: _Draft, call: Any) -> None:
    function = call.get("function") or {}
    # An unstreamed call has no index: it is the next one.
    known = draft.calls.setdefault(
        int(call.get("index", len(draft.calls))), {"id": None, "name": None, "arguments": None}
    )
    known["id"] = call.get("id") or known["id"]
    known["name"] = function.get("name") or known["name"]
    known["arguments"] = (known["arguments"] or "") + (function.get("arguments") or "")


def _usage(usage: Any) -> Usage:
    details = usage.get("prompt_tokens_details") or {}
    cached = details.get("cached_tokens")
    return Usage(
        prompt=int(usage["prompt_tokens"]),
        completion=int(usage.get("completion_tokens") or 0),
        cached=None if cached is None else int(cached),
    )


def _message_of(document: Any) -> str | None:
    """The message of an error in any of the shapes that engines use: nested, flat, or a plain string."""
    if not isinstance(document, dict):
        return None
    error = document.get("error")
    inner = error if isinstance(error, dict) else document
    message = inner.get("message") or inner.get("detail") or (error if isinstance(error, str) else None)
    if isinstance(message, dict):
        message = message.get("message")
    return str(message) if message else None


def _judge(request: ChatRequest, exchange: Exchange, answer: _Answer) -> tuple[Outcome, str, str]:
    waited_for = _waited_for(exchange, answer)
    if exchange.outcome is Outcome.HUNG:
        return Outcome.HUNG, _hang(exchange, answer), waited_for
    if answer.error is not None:
        where = "an error event in a 200 stream" if answer.streamed else "an error in the body of a 200"
        return Outcome.REFUSED, f"{where}: {cut(answer.error)}", waited_for
    if exchange.outcome is Outcome.REFUSED:
        said = error_text(bytes(exchange.body.data)) or "an empty body"
        return Outcome.REFUSED, f"{exchange.status}: {said}", waited_for
    if exchange.outcome is not Outcome.COMPLETED:
        return exchange.outcome, exchange.reason + _so_far(answer), waited_for
    if answer.garbled is not None:
        return Outcome.GARBLED, answer.garbled, waited_for
    return *_judge_answer(request, answer), waited_for


def _judge_answer(request: ChatRequest, answer: _Answer) -> tuple[Outcome, str]:
    choices = answer.finished_choices()
    if request.streamed and not answer.streamed:
        return Outcome.GARBLED, "a stream was asked for, one JSON body came"
    if answer.streamed and not answer.terminal:
        return Outcome.BROKEN, f"the stream ended cleanly without {TERMINAL}{_so_far(answer)}"
    if not choices:
        return Outcome.GARBLED, "no choices in the answer"
    if unfinished := [choice for choice in choices if choice.finish_reason is None]:
        return Outcome.BROKEN, f"no finish_reason in choice {unfinished[0].index}{_so_far(answer)}"
    if failed := [choice for choice in choices if choice.finish_reason in FAILED_FINISHES]:
        return Outcome.REFUSED, f'a 200 with finish_reason "{failed[0].finish_reason}"'
    # A model may end at once; then the server has counted the token that ended it. Nothing counted is nothing made.
    if all(choice.empty for choice in choices) and not (answer.usage and answer.usage.completion):
        return Outcome.GARBLED, "a 200 without any content, and no output tokens counted"
    return Outcome.COMPLETED, ""


def _waited_for(exchange: Exchange, answer: _Answer) -> str:
    if exchange.outcome is Outcome.COMPLETED or not answer.streamed:
        return str(exchange.phase)
    if answer.terminal:
        return f"the end of the response after {TERMINAL}"
    outputs = sum(len(draft.output_at) for draft in answer.drafts.values())
    return f"token {outputs + 1}" if outputs else "first token"


def _hang(exchange: Exchange, answer: _Answer) -> str:
    if not answer.streamed:
        return exchange.reason
    outputs = sum(len(draft.output_at) for draft in answer.drafts.values())
    if answer.terminal:
        return f"{exchange.reason}; the answer was whole, the response never ended"
    if not outputs:
        return f"{exchange.reason}; no token came"
    return f"{exchange.reason}; {outputs} token events had come"


def _so_far(answer: _Answer) -> str:
    outputs = sum(len(draft.output_at) for draft in answer.drafts.values())
    return f" (after {outputs} token events)" if answer.streamed else ""
