"""How vLLM workers speak: bodies, chunks and errors, as captured from vLLM 0.32 behind vllm-router 0.1.17."""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec

from pytest_pdserve.sim.ask import Ask, AskError, Surface, Trouble
from pytest_pdserve.sim.logprobs import chat_entry, completion_block
from pytest_pdserve.sim.progress import Progress, Step, said_whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_pdserve.sim.output import Output, Whole
    from pytest_pdserve.sim.plan import Plan
    from pytest_pdserve.sim.tools import CallPart

VERSION = "0.32.0"
_FINGERPRINT = "vllm-0.32.0-895df87f"
DONE = b"data: [DONE]\n\n"
_STATUS = {Trouble.UNKNOWN_MODEL: HTTPStatus.NOT_FOUND, Trouble.TRANSFER: HTTPStatus.INTERNAL_SERVER_ERROR}
_TYPES = {
    Trouble.UNKNOWN_MODEL: "NotFoundError",
    Trouble.TRANSFER: "InternalServerError",
    Trouble.MALFORMED: "Bad Request",
}
_PARAMS = {Trouble.UNKNOWN_MODEL: "model", Trouble.TOO_LONG: "input_tokens"}


def check(ask: Ask, plan: Plan) -> None:
    """Refuse what a worker can't serve, before any of it is worked on. Raises AskError."""
    if ask.model != plan.model:
        raise AskError(Trouble.UNKNOWN_MODEL, f"The model `{ask.model}` does not exist.")
    if ask.n > 1 and ask.greedy:
        raise AskError(Trouble.INVALID, f"n must be 1 when using greedy sampling, got {ask.n}.")
    limit, length = plan.context_tokens, len(ask.prompt)
    if length + (ask.max_tokens or 1) > limit:
        raise AskError(
            Trouble.TOO_LONG,
            f"This model's maximum context length is {limit} tokens. However, you requested {ask.max_tokens or 0} "
            f"output tokens and your prompt contains {length} input tokens. Please reduce the length of the input "
            "prompt or the number of requested output tokens.",
        )


def error_body(error: AskError) -> tuple[int, dict[str, Any]]:
    """Status and JSON body of a refused request."""
    status = _STATUS.get(error.trouble, HTTPStatus.BAD_REQUEST)
    detail = "Internal server error" if error.trouble is Trouble.TRANSFER else error.detail
    kind = _TYPES.get(error.trouble, "BadRequestError")
    param = _PARAMS.get(error.trouble)
    return status, {"error": {"message": detail, "type": kind, "param": param, "code": int(status)}}


def error_events(error: AskError, opening: list[bytes]) -> list[bytes]:
    """What ends a stream with an error once its headers have gone out; `opening` has not been sent yet."""
    return [*opening, b"data: " + json.dumps(error_body(error)[1]).encode() + b"\n\n", DONE]


def _event(body: Mapping[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


def _usage(ask: Ask, output_tokens: int, cached_tokens: int) -> dict[str, Any]:
    cached = {"cached_tokens": cached_tokens, "created_cache_tokens": 0, "multimodal_tokens": None}
    return {
        "prompt_tokens": len(ask.prompt),
        "total_tokens": len(ask.prompt) + output_tokens,
        "completion_tokens": output_tokens,
        "prompt_tokens_details": cached,
    }


class Writer:
    """Writes one answer as vLLM does: a chunk for each token, or one body."""

    def __init__(self, ask: Ask, request_id: str) -> None:
        self._ask = ask
        self._chat = ask.surface is Surface.CHAT
        self._progress = Progress(ask)
        kind = "chat.completion" if self._chat else "text_completion"
        self._head: dict[str, Any] = {
            "id": f"{'chatcmpl' if self._chat else 'cmpl'}-{request_id}",
            "object": f"{kind}.chunk" if self._chat and ask.stream else kind,
            "created": int(time.time()),
            "model": ask.model,
        }

    def opening(self) -> list[bytes]:
        """What opens a stream, when the first token has come: in a chat the role, before any text."""
        if not self._chat:
            return []
        delta = {"role": "assistant", "content": ""}
        return [
            _event(
                {
                    **self._head,
                    "choices": [{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}],
                    "prompt_token_ids": None,
                    "prompt_text": None,
                }
            )
            for index in range(self._ask.n)
        ]

    def chunk(self, output: Output) -> list[bytes]:
        """The events for one step: its text and calls if it has any, then the reason if the answer ended."""
        step = self._progress.step(output)
        logprobs = self._logprobs(step)
        said: list[dict[str, Any]] = (
            [{"content": step.text} if self._chat else {"text": step.text}] if step.text else []
        )
        said += [{"content": None, "tool_calls": [_call_part(call)]} for call in step.calls]
        events = []
        for delta in said:
            part = self._part(step.index, delta, logprobs) | {"token_ids": None}
            events.append(_event({**self._head, "choices": [part]}))
            logprobs = None
        if step.finish is None:
            return events
        ending = {
            "finish_reason": self._finish(step),
            "stop_reason": output.matched or None,
            "token_ids": None,
        }
        last_part = self._part(step.index, {} if self._chat else {"text": ""}, logprobs) | ending
        last: dict[str, Any] = {**self._head, "choices": [last_part]}
        if not self._progress.finished:
            return [*events, _event(last)]
        # the fingerprint comes with the last chunk, whichever that is
        counted = _usage(self._ask, self._progress.output_tokens, output.cached_tokens)
        usage = {**self._head, "choices": [], "usage": counted}
        (usage if self._ask.include_usage else last)["system_fingerprint"] = _FINGERPRINT
        events += [_event(last)] + ([_event(usage)] if self._ask.include_usage else [])
        return [*events, DONE]

    def _finish(self, step: Step) -> str | None:
        """As captured: a call that was forced by name ends with "stop"."""
        return "stop" if step.finish == "tool_calls" and self._ask.guide.only else step.finish

    def _part(
        self, index: int, delta: Mapping[str, Any], logprobs: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        said = {"delta": delta} if self._chat else delta
        return {"index": index, **said, "logprobs": logprobs, "finish_reason": None}

    def _logprobs(self, step: Step) -> dict[str, Any] | None:
        top = self._ask.top_logprobs
        if top is None or not step.tokens:
            return None
        if self._chat:
            return {"content": [chat_entry(piece, top) for piece in step.tokens]}
        return completion_block(step.tokens, top, step.offset)

    def whole(self, answers: Sequence[Whole], transfer: Mapping[str, Any] | None) -> dict[str, Any]:
        """The body of an unstreamed answer; a prefill's tells where its KV is."""
        choices = [self._choice(answer) for answer in answers]
        tokens = sum(answer.last.output_tokens for answer in answers)
        usage = _usage(self._ask, tokens, answers[0].last.cached_tokens) | {"completion_tokens_details": None}
        body = {**self._head, "choices": choices, "service_tier": None, "system_fingerprint": _FINGERPRINT}
        body |= {"usage": usage, **dict.fromkeys(("prompt_logprobs", "prompt_token_ids", "prompt_text"))}
        return body | {"kv_transfer_params": transfer, "ec_transfer_params": None, "metrics": None}

    def _choice(self, answer: Whole) -> dict[str, Any]:
        last = answer.last
        step = self._progress.step(replace(last, text=answer.text, tokens=answer.tokens))
        said = said_whole(answer, step)
        choice: dict[str, Any] = {"index": last.index}
        if self._chat:
            empty = dict.fromkeys(("refusal", "annotations", "audio", "function_call"))
            calls = [_called(name, arguments) for name, arguments in said.calls]
            content = None if calls and not said.text else said.text
            called = {"tool_calls": calls} if calls else {}
            choice["message"] = {
                "role": "assistant",
                "content": content,
                **empty,
                **called,
                "reasoning": None,
            }
        else:
            choice["text"] = answer.text
        choice |= {
            "logprobs": self._logprobs(step),
            "finish_reason": self._finish(step),
            "stop_reason": last.matched or None,
        }
        return choice | {"token_ids": None, "routed_experts": None}


def _call_part(part: CallPart) -> dict[str, Any]:
    if part.name is None:
        return {"index": part.index, "function": {"arguments": part.arguments}}
    return {"id": _call_id(), "type": "function", "index": part.index, "function": {"name": part.name}}


def _called(name: str, arguments: str) -> dict[str, Any]:
    return {"id": _call_id(), "type": "function", "function": {"name": name, "arguments": arguments}}


def _call_id() -> str:
    return f"chatcmpl-tool-{uuid.uuid4().hex[:16]}"


def writer(ask: Ask, request_id: str | None) -> Writer:
    """A writer for one answer, named after the request when that has a name."""
    return Writer(ask, request_id or uuid.uuid4().hex)


def models(plan: Plan) -> dict[str, Any]:
    """A worker's /v1/models."""
    card = {
        "id": plan.model,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "vllm",
        "root": f"/models/{plan.model}",
        "parent": None,
        "max_model_len": plan.context_tokens,
    }
    return {"object": "list", "data": [card]}
