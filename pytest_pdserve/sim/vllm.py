"""How vLLM workers speak: bodies, chunks and errors, as captured from vLLM 0.32 behind vllm-router 0.1.17."""

from __future__ import annotations

import json
import time
import uuid
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec

from pytest_pdserve.sim.ask import Ask, AskError, Surface, Trouble

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_pdserve.sim.output import Output
    from pytest_pdserve.sim.plan import Plan

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


def _usage(ask: Ask, output: Output) -> dict[str, Any]:
    cached = {"cached_tokens": output.cached_tokens, "created_cache_tokens": 0, "multimodal_tokens": None}
    return {
        "prompt_tokens": len(ask.prompt),
        "total_tokens": len(ask.prompt) + output.output_tokens,
        "completion_tokens": output.output_tokens,
        "prompt_tokens_details": cached,
    }


class Writer:
    """Writes one answer as vLLM does: a chunk for each token, or one body."""

    def __init__(self, ask: Ask, request_id: str) -> None:
        self._ask = ask
        self._chat = ask.surface is Surface.CHAT
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
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        return [_event({**self._head, "choices": [choice], "prompt_token_ids": None, "prompt_text": None})]

    def chunk(self, output: Output) -> list[bytes]:
        """The events for one step: its text if it has any, then the reason if the answer ended."""
        events = [_event({**self._head, "choices": [self._part(output.text)]})] if output.text else []
        if output.finish is None:
            return events
        ending = {"finish_reason": output.finish, "stop_reason": output.matched or None, "token_ids": None}
        last: dict[str, Any] = {**self._head, "choices": [self._part(None) | ending]}
        # the fingerprint comes with the last chunk, whichever that is
        usage = {**self._head, "choices": [], "usage": _usage(self._ask, output)}
        (usage if self._ask.include_usage else last)["system_fingerprint"] = _FINGERPRINT
        events += [_event(last)] + ([_event(usage)] if self._ask.include_usage else [])
        return [*events, DONE]

    def _part(self, text: str | None) -> dict[str, Any]:
        part: dict[str, Any] = {"index": 0}
        if self._chat:
            part["delta"] = {} if text is None else {"content": text}
        else:
            part["text"] = text or ""
        part |= {"logprobs": None, "finish_reason": None}
        if text is not None:
            part["token_ids"] = None
        return part

    def whole(self, text: str, output: Output, transfer: Mapping[str, Any] | None) -> dict[str, Any]:
        """The body of an unstreamed answer; a prefill's tells where its KV is."""
        choice: dict[str, Any] = {"index": 0}
        if self._chat:
            empty = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "reasoning"))
            choice["message"] = {"role": "assistant", "content": text, **empty}
        else:
            choice["text"] = text
        choice |= {"logprobs": None, "finish_reason": output.finish, "stop_reason": output.matched or None}
        choice |= {"token_ids": None, "routed_experts": None}
        usage = _usage(self._ask, output) | {"completion_tokens_details": None}
        body = {**self._head, "choices": [choice], "service_tier": None, "system_fingerprint": _FINGERPRINT}
        body |= {"usage": usage, **dict.fromkeys(("prompt_logprobs", "prompt_token_ids", "prompt_text"))}
        return body | {"kv_transfer_params": transfer, "ec_transfer_params": None, "metrics": None}


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
