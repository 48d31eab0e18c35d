"""How SGLang workers speak: bodies, chunks and errors, as SGLang 0.5.x sends them."""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec

from pytest_pdserve.sim.ask import Ask, AskError, Surface, Trouble
from pytest_pdserve.sim.logprobs import chat_entry, completion_block
from pytest_pdserve.sim.progress import Progress, Step, said_whole
from pytest_pdserve.sim.tokens import EOS_ID

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_pdserve.sim.output import Output, Whole
    from pytest_pdserve.sim.plan import Plan, Role
    from pytest_pdserve.sim.tools import CallPart

VERSION = "0.5.10"
_STATUS = {Trouble.TRANSFER: HTTPStatus.INTERNAL_SERVER_ERROR}
_TYPES = {Trouble.MALFORMED: "Bad Request", Trouble.TRANSFER: "InternalServerError"}
DONE = b"data: [DONE]\n\n"


def check(ask: Ask, plan: Plan) -> None:
    """Refuse what a worker can't serve, before any of it is worked on. Raises AskError."""
    if not ask.sources:
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


def _usage(ask: Ask, output_tokens: int, cached_tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": len(ask.prompt),
        "total_tokens": len(ask.prompt) + output_tokens,
        "completion_tokens": output_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens} if cached_tokens else None,
        "reasoning_tokens": 0,
    }


class Writer:
    """Writes one answer as SGLang does: a chunk for each token, or one body."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._chat = ask.surface is Surface.CHAT
        self._progress = Progress(ask)
        kind = "chat.completion" if self._chat else "text_completion"
        self._head = {
            "id": uuid.uuid4().hex,
            "object": f"{kind}.chunk" if self._chat and ask.stream else kind,
            "created": int(time.time()),
            "model": ask.model,
        }

    def opening(self) -> list[bytes]:
        """What opens a stream, when the first token has come: in a chat the role, before any text."""
        if not self._chat:
            return []
        return [self._chunk(index, {"role": "assistant", "content": ""}) for index in range(self._ask.n)]

    def chunk(self, output: Output) -> list[bytes]:
        """The events for one step: its text and calls if it has any, then the reason if the answer ended."""
        step = self._progress.step(output)
        events, logprobs = [], self._logprobs(step)
        if step.text:
            part = {"content": step.text} if self._chat else {"text": step.text}
            events.append(self._chunk(step.index, part, logprobs=logprobs))
            logprobs = None
        for call in step.calls:
            events.append(self._chunk(step.index, {"tool_calls": [_call_part(call)]}, logprobs=logprobs))
            logprobs = None
        if step.finish is None:
            return events
        end: dict[str, Any] = {"content": None} if self._chat else {"text": ""}
        events.append(self._chunk(step.index, end, step.finish, _matched(output), logprobs))
        if not self._progress.finished:
            return events
        if self._ask.include_usage:
            usage = _usage(self._ask, self._progress.output_tokens, output.cached_tokens)
            events.append(event({**self._head, "choices": [], "usage": usage}))
        return [*events, DONE]

    def whole(self, answers: Sequence[Whole], transfer: Mapping[str, Any] | None) -> dict[str, Any]:
        """The body of an unstreamed answer. SGLang hands KV over by rooms, so there is no `transfer` to tell of."""
        choices = [self._choice(answer) for answer in answers]
        tokens = sum(answer.last.output_tokens for answer in answers)
        usage = _usage(self._ask, tokens, answers[0].last.cached_tokens)
        return {**self._head, "choices": choices, "usage": usage, "metadata": {"weight_version": "default"}}

    def _choice(self, answer: Whole) -> dict[str, Any]:
        last = answer.last
        step = self._progress.step(replace(last, text=answer.text, tokens=answer.tokens))
        said = said_whole(answer, step)
        calls = [
            _called(number, name, arguments) for number, (name, arguments) in enumerate(said.calls)
        ] or None
        content = None if calls and not said.text else said.text
        message = {"role": "assistant", "content": content, "reasoning_content": None, "tool_calls": calls}
        choice: dict[str, Any] = {"index": last.index}
        choice |= {"message": message} if self._chat else {"text": answer.text}
        return choice | {
            "logprobs": self._logprobs(step),
            "finish_reason": step.finish,
            "matched_stop": _matched(last),
        }

    def _logprobs(self, step: Step) -> dict[str, Any] | None:
        top = self._ask.top_logprobs
        if top is None or not step.tokens:
            return None
        if self._chat:
            return {"content": [chat_entry(piece, top) for piece in step.tokens]}
        return completion_block(step.tokens, top, step.offset)

    def _chunk(
        self,
        index: int,
        part: Mapping[str, Any],
        finish: str | None = None,
        matched: int | str | None = None,
        logprobs: Mapping[str, Any] | None = None,
    ) -> bytes:
        choice: dict[str, Any] = {"index": index}
        if self._chat:
            empty = {"role": None, "content": None, "reasoning_content": None, "tool_calls": None}
            choice["delta"] = {**empty, **part}
        else:
            choice |= part
        choice |= {"logprobs": logprobs, "finish_reason": finish, "matched_stop": matched}
        return event({**self._head, "choices": [choice], "usage": None})


def _call_part(part: CallPart) -> dict[str, Any]:
    function = {"name": part.name, "arguments": part.arguments}
    named = part.name is not None
    return {
        "id": _call_id() if named else None,
        "index": part.index,
        "type": "function",
        "function": function,
    }


def _called(index: int, name: str, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": _call_id(), "index": index, "type": "function", "function": function}


def _call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"


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
