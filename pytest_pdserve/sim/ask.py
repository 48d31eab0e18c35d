"""What a client asks for: the request body, checked and reduced to what the engines need."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from pytest_pdserve.sim.grammar import FREE, Guide, check
from pytest_pdserve.sim.tokens import cut, render

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Surface(StrEnum):
    """Which of the two OpenAI endpoints was called."""

    CHAT = "chat.completions"
    COMPLETIONS = "completions"


class Trouble(StrEnum):
    """Why a request is refused; a dialect gives each its status, code and text."""

    MALFORMED = "malformed"
    INVALID = "invalid"
    UNKNOWN_MODEL = "unknown_model"
    TOO_LONG = "too_long"
    NO_ROOM = "no_room"
    TRANSFER = "transfer"


class AskError(Exception):
    """A request that can't be answered."""

    def __init__(self, trouble: Trouble, detail: str) -> None:
        super().__init__(detail)
        self.trouble = trouble
        self.detail = detail


class Source(NamedTuple):
    """Where decode finds the KV of one answer."""

    host: str
    port: int
    room: int


@dataclass(frozen=True, slots=True)
class Ask:
    """One checked request, or one of the `n` answers that it asks for."""

    surface: Surface
    model: str
    prompt: tuple[bytes, ...]
    stream: bool
    include_usage: bool
    max_tokens: int | None
    min_tokens: int
    ignore_eos: bool
    stops: tuple[str, ...]
    sources: tuple[Source, ...]
    """Where the KV of each answer is to be found; empty when the request brings none."""
    hold: bool
    """vLLM's do_remote_decode: compute the prompt and keep its KV for whoever will fetch it."""
    greedy: bool
    """Whether the temperature is 0."""
    n: int = 1
    index: int = 0
    top_logprobs: int | None = None
    """How many alternatives to each token; None when no log probabilities were asked for."""
    tools: bool = False
    """Whether tools were offered, so that the answer is read for calls."""
    guide: Guide = FREE

    @property
    def source(self) -> Source | None:
        """Where this answer's KV is to be found."""
        return self.sources[self.index] if self.sources else None

    def choice(self, index: int) -> Ask:
        """One of the answers asked for."""
        return replace(self, index=index)


def parse_body(raw: bytes) -> dict[str, Any]:
    """Decode a JSON object. Raises AskError (malformed)."""
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise AskError(Trouble.MALFORMED, str(error)) from None
    if not isinstance(body, dict):
        raise AskError(Trouble.INVALID, "Input should be a valid dictionary")
    return body


def parse_ask(body: Mapping[str, Any], surface: Surface, model: str) -> Ask:
    """Check a request body. `model` answers when none is named. Raises AskError (invalid)."""
    stream_options = body.get("stream_options") or {}
    limit = body.get("max_completion_tokens")
    limit = body.get("max_tokens") if limit is None else limit
    if limit is None and surface is Surface.COMPLETIONS:
        limit = 16  # the OpenAI API's default for completions
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise AskError(Trouble.INVALID, f"max_new_tokens must be at least 1, got {limit}.")
    n = body.get("n", 1)
    n = 1 if n is None else n
    if not isinstance(n, int) or n < 1:
        raise AskError(Trouble.INVALID, f"n must be at least 1, got {n}.")
    transfer = body.get("kv_transfer_params") or {}
    tools = _tools(body, surface)
    return Ask(
        surface=surface,
        model=str(body.get("model") or model),
        prompt=tuple(_prompt(body, surface, tools)),
        stream=bool(body.get("stream")),
        include_usage=bool(stream_options.get("include_usage")),
        max_tokens=limit,
        min_tokens=int(body.get("min_tokens") or 0),
        ignore_eos=bool(body.get("ignore_eos")),
        stops=_stops(body.get("stop")),
        sources=_sources(body, transfer, n),
        hold=bool(transfer.get("do_remote_decode")),
        greedy=body.get("temperature") == 0,
        n=n,
        top_logprobs=_top_logprobs(body, surface),
        tools=bool(tools) and body.get("tool_choice") != "none",
        guide=_guide(body, tools),
    )


def _sources(body: Mapping[str, Any], transfer: Mapping[str, Any], n: int) -> tuple[Source, ...]:
    if transfer.get("do_remote_prefill"):
        first = int(transfer.get("remote_request_id", 0))
        return tuple(
            Source(str(transfer.get("remote_host")), int(transfer.get("remote_port", 0)), first + index)
            for index in range(n)
        )
    given = [body.get(f"bootstrap_{part}") for part in ("host", "port", "room")]
    if any(part is None for part in given):
        return ()
    # sglang-router sends lists when several answers are asked for
    columns = [part if isinstance(part, list) else [part] for part in given]
    sources = tuple(Source(*row) for row in zip(*columns, strict=False))
    if len(sources) != n:
        raise AskError(Trouble.NO_ROOM, f"{n} answers need {n} rooms, got {len(sources)}")
    return sources


def _top_logprobs(body: Mapping[str, Any], surface: Surface) -> int | None:
    wanted = body.get("logprobs")
    if surface is Surface.COMPLETIONS:
        return None if wanted is None or wanted is False else int(wanted)
    top = body.get("top_logprobs")
    if top is not None and not wanted:
        raise AskError(Trouble.INVALID, "when using `top_logprobs`, `logprobs` must be set to true.")
    return int(top or 0) if wanted else None


def _tools(body: Mapping[str, Any], surface: Surface) -> list[dict[str, Any]]:
    """The functions that are offered."""
    given = body.get("tools") or []
    if surface is Surface.COMPLETIONS or not given:
        if surface is Surface.CHAT and body.get("tool_choice") not in (None, "none", "auto"):
            raise AskError(Trouble.INVALID, "When using `tool_choice`, `tools` must be set.")
        return []
    functions: list[Any] = [tool.get("function") for tool in given if isinstance(tool, dict)]
    if len(functions) != len(given) or not all(
        isinstance(each, dict) and each.get("name") for each in functions
    ):
        raise AskError(Trouble.INVALID, "tools: each needs a function with a name")
    for function in functions:
        _check_schema(function.get("parameters") or {}, "tools")
    return functions


def _guide(body: Mapping[str, Any], tools: Sequence[Mapping[str, Any]]) -> Guide:
    choice = body.get("tool_choice", "auto")
    only = None
    if isinstance(choice, dict):
        only = (choice.get("function") or {}).get("name")
        if only not in [tool["name"] for tool in tools]:
            raise AskError(Trouble.INVALID, f"Tool '{only}' has not been passed in `tools`.")
    elif choice not in ("auto", "none", "required", None):
        raise AskError(Trouble.INVALID, f"Invalid value for `tool_choice`: {choice}")
    return Guide(
        schema=_schema(body.get("response_format")),
        must_call=only is not None or choice == "required",
        may_call=choice != "none",
        only=only,
        parallel=body.get("parallel_tool_calls") is not False,
    )


def _schema(form: Any) -> Mapping[str, Any] | None:
    kind = form.get("type") if isinstance(form, dict) else None
    if kind in (None, "text"):
        return None
    if kind == "json_object":
        return {"type": "object"}
    schema = (form.get("json_schema") or {}).get("schema") if kind == "json_schema" else None
    if not isinstance(schema, dict):
        raise AskError(Trouble.INVALID, "response_format: json_schema needs a schema")
    _check_schema(schema, "response_format")
    return schema


def _check_schema(schema: Mapping[str, Any], where: str) -> None:
    try:
        check(schema)
    except ValueError as error:
        raise AskError(Trouble.INVALID, f"{where}: {error}") from None


def _prompt(body: Mapping[str, Any], surface: Surface, tools: Sequence[Mapping[str, Any]]) -> list[bytes]:
    if surface is Surface.COMPLETIONS:
        prompt = body.get("prompt")
        if not isinstance(prompt, str):
            raise AskError(Trouble.INVALID, "prompt: Input should be a valid string")
        return cut(prompt)
    messages = body.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise AskError(Trouble.INVALID, "messages: Field required")
    if not messages:
        raise AskError(Trouble.INVALID, "Messages cannot be empty.")
    return render(messages, tools)


def _stops(stop: Any) -> tuple[str, ...]:
    if stop is None:
        return ()
    stops: Sequence[Any] = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or not all(isinstance(text, str) for text in stops):
        raise AskError(Trouble.INVALID, "stop: Input should be a valid string or list of strings")
    return tuple(stops)
