"""What a client asks for: the request body, checked and reduced to what the engines need."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

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


@dataclass(frozen=True, slots=True)
class Ask:
    """One checked request."""

    surface: Surface
    model: str
    prompt: tuple[bytes, ...]
    stream: bool
    include_usage: bool
    max_tokens: int | None
    min_tokens: int
    ignore_eos: bool
    stops: tuple[str, ...]
    bootstrap_host: str | None
    bootstrap_port: int | None
    bootstrap_room: int | None
    hold: bool
    """vLLM's do_remote_decode: compute the prompt and keep its KV for whoever will fetch it."""


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
    if body.get("n") not in (None, 1):
        raise AskError(Trouble.INVALID, "only n=1 is supported")
    transfer = body.get("kv_transfer_params") or {}
    source: tuple[Any, Any, Any]
    if transfer.get("do_remote_prefill"):
        source = (
            transfer.get("remote_host"),
            transfer.get("remote_port"),
            int(transfer.get("remote_request_id", 0)),
        )
    else:
        source = body.get("bootstrap_host"), body.get("bootstrap_port"), body.get("bootstrap_room")
    host, port, room = source
    return Ask(
        surface=surface,
        model=str(body.get("model") or model),
        prompt=tuple(_prompt(body, surface)),
        stream=bool(body.get("stream")),
        include_usage=bool(stream_options.get("include_usage")),
        max_tokens=limit,
        min_tokens=int(body.get("min_tokens") or 0),
        ignore_eos=bool(body.get("ignore_eos")),
        stops=_stops(body.get("stop")),
        bootstrap_host=host,
        bootstrap_port=port,
        bootstrap_room=room,
        hold=bool(transfer.get("do_remote_decode")),
    )


def _prompt(body: Mapping[str, Any], surface: Surface) -> list[bytes]:
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
    return render(messages)


def _stops(stop: Any) -> tuple[str, ...]:
    if stop is None:
        return ()
    stops: Sequence[Any] = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or not all(isinstance(text, str) for text in stops):
        raise AskError(Trouble.INVALID, "stop: Input should be a valid string or list of strings")
    return tuple(stops)
