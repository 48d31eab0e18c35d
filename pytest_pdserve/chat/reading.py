"""An exchange read as an answer: what HTTP calls complete may still be no answer at all."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pytest_pdserve.chat.answer import TERMINAL, Answer
from pytest_pdserve.chat.foreign import error_text
from pytest_pdserve.chat.reply import Reply
from pytest_pdserve.wire import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_pdserve.chat.request import ChatRequest
    from pytest_pdserve.wire import Exchange

# Finish reasons by which engines say in a 200 that they failed (vLLM behind a gRPC router, smg issue 2382;
# SGLang's aborts, sglang issue 25388).
FAILED_FINISHES: Final = frozenset({"error", "abort"})

_EVENT_FIELD: Final = re.compile(rb"\s*(data|event|id|retry)?:")


def read_reply(
    request: ChatRequest,
    exchange: Exchange,
    *,
    mask: Callable[[str], str] = str,
) -> Reply:
    """Read `exchange` as the answer to `request`. Raises nothing for whatever a server sent.

    The outcome is the wire's unless the wire calls it completed; then the body decides. Of a 200:
    `refused` says an error in the body or in finish_reason, `broken` ended without its terminal event or a
    finish reason, `garbled` is not the protocol or holds no content.

    Every text in the reply has gone through `mask`, the exchange's header fields and reason included; only the bytes
    of its body are as they came, and no repr shows them.
    """
    answer = Answer(mask)
    if exchange.status is not None and exchange.status < 300:
        _read_body(answer, request, exchange)
    outcome, reason = _judge(request, exchange, answer)
    return Reply(
        request=request,
        exchange=_masked(exchange, mask),
        outcome=outcome,
        reason=mask(reason),
        waited_for=_waited_for(exchange, answer),
        choices=answer.choices(),
        usage=answer.usage,
        model=answer.model,
        oddities=tuple(answer.oddities),
    )


def _read_body(answer: Answer, request: ChatRequest, exchange: Exchange) -> None:
    body = bytes(exchange.body.data)
    kind = exchange.header("content-type") or "none"
    labelled = kind.lower().startswith("text/event-stream")
    if body.lstrip().startswith(b"{"):
        labelled = False
    elif not labelled and request.streamed and _EVENT_FIELD.match(body):
        labelled = True
        answer.odd(f"an event stream is labelled content-type {answer.mask(kind)[:80]}")
    if labelled:
        answer.read_stream(exchange.body)
    elif exchange.outcome is Outcome.COMPLETED:
        answer.read_document(body, kind)


def _judge(request: ChatRequest, exchange: Exchange, answer: Answer) -> tuple[Outcome, str]:
    if exchange.outcome is Outcome.HUNG:
        return Outcome.HUNG, _hang(exchange, answer)
    if answer.error is not None:
        where = "an error event in a 200 stream" if answer.streamed else "an error in the body of a 200"
        return Outcome.REFUSED, f"{where}: {answer.error}{_so_far(answer)}"
    if exchange.outcome is Outcome.REFUSED:
        said = error_text(bytes(exchange.body.data), answer.mask)
        return Outcome.REFUSED, f"{exchange.reason}: {'an empty body' if said == 'nothing' else said}"
    if exchange.outcome is not Outcome.COMPLETED:
        return exchange.outcome, exchange.reason + _so_far(answer)
    if answer.garbled is not None:
        return Outcome.GARBLED, answer.garbled
    return _judge_answer(request, answer)


def _judge_answer(request: ChatRequest, answer: Answer) -> tuple[Outcome, str]:
    choices = answer.choices()
    if request.streamed != answer.streamed:
        asked, came = ("a stream", "one JSON body") if request.streamed else ("one JSON body", "a stream")
        return Outcome.GARBLED, f"{asked} was asked for, {came} came"
    if failed := [choice for choice in choices if choice.finish_reason in FAILED_FINISHES]:
        return Outcome.REFUSED, f'a 200 with finish_reason "{failed[0].finish_reason}"{_so_far(answer)}'
    if answer.streamed and not answer.terminal:
        return Outcome.BROKEN, f"the stream ended cleanly without {TERMINAL}{_so_far(answer)}"
    if not choices:
        return Outcome.GARBLED, "no choices in the answer"
    if unfinished := [choice for choice in choices if choice.finish_reason is None]:
        return Outcome.BROKEN, f"no finish_reason in choice {unfinished[0].index}{_so_far(answer)}"
    # A model may end at once; then the server has counted the token that ended it. Nothing counted is nothing made.
    if all(choice.empty for choice in choices) and not (answer.usage and answer.usage.completion):
        return Outcome.GARBLED, "a 200 without any content, and no output tokens counted"
    return Outcome.COMPLETED, ""


def _waited_for(exchange: Exchange, answer: Answer) -> str:
    if not answer.streamed:
        return str(exchange.phase)
    if answer.terminal:
        whole = exchange.outcome is Outcome.COMPLETED
        return str(exchange.phase) if whole else f"the end of the response after {TERMINAL}"
    choices = answer.choices()
    if choices and all(choice.finish_reason is not None for choice in choices):
        return TERMINAL
    return f"token {answer.outputs + 1}" if answer.outputs else "first token"


def _hang(exchange: Exchange, answer: Answer) -> str:
    if not answer.streamed:
        return exchange.reason
    if answer.error is not None:
        return f"{exchange.reason}; it had said an error: {answer.error}"
    if answer.terminal:
        return f"{exchange.reason}; the answer was whole, the response never ended"
    if not answer.outputs:
        return f"{exchange.reason}; no token came" if exchange.body else exchange.reason
    return f"{exchange.reason}; {_events(answer)} had come"


def _so_far(answer: Answer) -> str:
    if not answer.streamed:
        return ""
    ended = f" and {TERMINAL}" if answer.terminal and answer.error is None else ""
    return f" (after {_events(answer)}{ended})"


def _events(answer: Answer) -> str:
    return f"{answer.outputs} token event{'' if answer.outputs == 1 else 's'}"


def _masked(exchange: Exchange, mask: Callable[[str], str]) -> Exchange:
    """The exchange with everything in it that is shown or recorded masked: servers echo keys in headers, too."""
    return replace(
        exchange,
        url=mask(exchange.url),
        reason=mask(exchange.reason),
        headers=tuple((mask(name), mask(value)) for name, value in exchange.headers),
        trailers=tuple((mask(name), mask(value)) for name, value in exchange.trailers),
    )
