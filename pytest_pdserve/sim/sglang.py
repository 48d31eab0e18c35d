"""How SGLang workers speak: bodies, chunks and errors, as SGLang 0.5.x sends them."""

from __future__ import annotations

import time
import uuid
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec

from pytest_pdserve.sim.ask import Ask, AskError, Surface, Trouble
from pytest_pdserve.sim.tokens import EOS_ID

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_pdserve.sim.output import Output
    from pytest_pdserve.sim.plan import Plan, Role

VERSION = "0.5.10"
_STATUS = {Trouble.TRANSFER: HTTPStatus.INTERNAL_SERVER_ERROR}
_TYPES = {Trouble.MALFORMED: "Bad Request", Trouble.TRANSFER: "InternalServerError"}
DONE = b"data: [DONE]\n\n"


def check(ask: Ask, plan: Plan) -> None:
    """Refuse what a worker can't serve, before any of it is worked on. Raises AskError."""
    if ask.bootstrap_room is None or ask.bootstrap_host is None or ask.bootstrap_port is None:
        raise AskError(Trouble.NO_ROOM, "Disaggregated request received without bootstrap room id.")
    limit, length = plan.context_tokens, len(ask.prompt)
    if length >= limit:
        what = f"The input ({length} tokens) is longer than the model's context length ({limit} tokens)."
        raise AskError(Trouble.TOO_LONG, what)
    total = length + (ask.max_tokens or 0)
    if total > limit:
        raise AskError(
            Trouble.TOO_LONG,
            f"Requested token count exceeds the model's maximum context length of {limit} tokens. You requested a "
            f"total of {total} tokens: {length} tokens from the input messages and {ask.max_tokens} tokens for the "
            "completion.",
        )


def event(body: Mapping[str, Any]) -> bytes:
    """One server-sent event with a JSON body."""
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


def error_body(error: AskError) -> tuple[int, dict[str, Any]]:
    """Status and JSON body of a refused request."""
    status = _STATUS.get(error.trouble, HTTPStatus.BAD_REQUEST)
    kind = _TYPES.get(error.trouble, "BadRequestError")
    detail = error.detail
    if error.trouble is Trouble.MALFORMED:
        detail = f"1 validation error:\n  {{'type': 'json_invalid', 'loc': ('body', 0), 'msg': '{detail}'}}"
    if error.trouble is Trouble.NO_ROOM:
        detail = f"Invalid request: {detail}"
    return status, {"object": "error", "message": detail, "type": kind, "param": None, "code": int(status)}


def error_events(error: AskError, opening: list[bytes]) -> list[bytes]:
    """What ends a stream with an error once its headers have gone out; `opening` has not been sent yet."""
    return [event({"error": error_body(error)[1]}), DONE]


def _matched(output: Output) -> int | str | None:
    return EOS_ID if output.matched == "" else output.matched


def _usage(ask: Ask, output: Output) -> dict[str, Any]:
    return {
        "prompt_tokens": len(ask.prompt),
        "total_tokens": len(ask.prompt) + output.output_tokens,
        "completion_tokens": output.output_tokens,
        "prompt_tokens_details": {"cached_tokens": output.cached_tokens} if output.cached_tokens else None,
        "reasoning_tokens": 0,
    }


class Writer:
    """Writes one answer as SGLang does: a chunk for each token, or one body."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._chat = ask.surface is Surface.CHAT
        kind = "chat.completion" if self._chat else "text_completion"
        self._head = {
            "id": uuid.uuid4().hex,
            "object": f"{kind}.chunk" if self._chat and ask.stream else kind,
            "created": int(time.time()),
            "model": ask.model,
        }

    def opening(self) -> list[bytes]:
        """What opens a stream, when the first token has come: in a chat the role, before any text."""
        return [self._chunk({"role": "assistant", "content": ""})] if self._chat else []

    def chunk(self, output: Output) -> list[bytes]:
        """The events for one step: its text if it has any, then the reason if the answer ended."""
        events = [self._text(output.text)] if output.text else []
        if output.finish is None:
            return events
        end: dict[str, Any] = {"content": None} if self._chat else {"text": ""}
        events.append(self._chunk(end, output.finish, _matched(output)))
        if self._ask.include_usage:
            events.append(event({**self._head, "choices": [], "usage": _usage(self._ask, output)}))
        return [*events, DONE]

    def whole(self, text: str, output: Output, transfer: Mapping[str, Any] | None) -> dict[str, Any]:
        """The body of an unstreamed answer. SGLang hands KV over by rooms, so there is no `transfer` to tell of."""
        message = {"role": "assistant", "content": text, "reasoning_content": None, "tool_calls": None}
        choice: dict[str, Any] = {"index": 0}
        choice |= {"message": message} if self._chat else {"text": text}
        choice |= {"logprobs": None, "finish_reason": output.finish, "matched_stop": _matched(output)}
        metadata = {"weight_version": "default"}
        return {**self._head, "choices": [choice], "usage": _usage(self._ask, output), "metadata": metadata}

    def _text(self, text: str) -> bytes:
        return self._chunk({"content": text} if self._chat else {"text": text})

    def _chunk(
        self, part: Mapping[str, Any], finish: str | None = None, matched: int | str | None = None
    ) -> bytes:
        choice: dict[str, Any] = {"index": 0}
        if self._chat:
            empty = {"role": None, "content": None, "reasoning_content": None, "tool_calls": None}
            choice["delta"] = {**empty, **part}
        else:
            choice |= part
        choice |= {"logprobs": None, "finish_reason": finish, "matched_stop": matched}
        return event({**self._head, "choices": [choice], "usage": None})


def writer(ask: Ask, request_id: str | None) -> Writer:
    """A writer for one answer; SGLang gives answers ids of its own."""
    return Writer(ask)


def server_info(plan: Plan, role: Role) -> dict[str, Any]:
    """/server_info: the launch arguments and a few figures."""
    return {
        "model_path": f"/models/{plan.model}",
        "tokenizer_path": f"/models/{plan.model}",
        "served_model_name": plan.model,
        "disaggregation_mode": str(role),
        "disaggregation_transfer_backend": "mooncake",
        "context_length": plan.context_tokens,
        "tp_size": 1,
        "dp_size": 1,
        "pp_size": 1,
        "load_balance_method": "round_robin",
        "page_size": 64,
        "max_total_num_tokens": plan.kv_tokens,
        "max_running_requests": 256,
        "chunked_prefill_size": plan.timing.prefill_chunk_tokens,
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "status": "ready",
        "version": VERSION,
    }


def model_info(plan: Plan) -> dict[str, Any]:
    """/model_info and the older /get_model_info."""
    return {
        "model_path": f"/models/{plan.model}",
        "tokenizer_path": f"/models/{plan.model}",
        "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": "default",
        "has_image_understanding": False,
        "has_audio_understanding": False,
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
    }


def models(plan: Plan) -> dict[str, Any]:
    """A worker's /v1/models."""
    card = {
        "id": plan.model,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "sglang",
        "root": plan.model,
        "parent": None,
        "max_model_len": plan.context_tokens,
    }
    return {"object": "list", "data": [card]}
