"""The protocol's JSON: one chunk of a stream, or a whole unstreamed answer, which has the same form."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from pytest_pdserve.chat.foreign import message_of
from pytest_pdserve.chat.reply import Usage

Count = Annotated[int, msgspec.Meta(ge=0, le=10**12)]
Place = Annotated[int, msgspec.Meta(ge=0, le=10**6)]


class Unreadable(ValueError):
    """What came is not the protocol; the text goes on after "the body " or "event 3 "."""


class Function(msgspec.Struct):
    """The function that a call names, or a piece of its arguments."""

    name: str | None = None
    arguments: str | None = None


class Call(msgspec.Struct):
    """A tool call, or a piece of the one with the same index."""

    index: Place | None = None
    id: str | None = None
    function: Function | None = None


class Said(msgspec.Struct):
    """A delta or a message. Reasoning has two names: vLLM says `reasoning`, others `reasoning_content`."""

    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Call] | None = None


NOTHING: Final = Said()


class Part(msgspec.Struct):
    """One choice: chat says it in `delta` or `message`, a plain completion in `text`."""

    index: Place | None = None
    delta: Said | None = None
    message: Said | None = None
    text: str | None = None
    finish_reason: str | None = None


class Chunk(msgspec.Struct):
    """One document of an answer, or the error that came in place of one."""

    choices: list[Part] | None = None
    model: str | None = None
    usage: msgspec.Raw = msgspec.Raw(b"null")
    error: Any = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: Count | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: Count
    completion_tokens: Count | None = None
    prompt_tokens_details: _PromptDetails | None = None


_CHUNK: Final = msgspec.json.Decoder(Chunk)
_USAGE: Final = msgspec.json.Decoder(_Usage | None)


def read_chunk(data: bytes | str) -> Chunk:
    """Read one document; one whose `error` is set has nothing else.

    Raises Unreadable for what is neither a completion nor an error.
    """
    try:
        chunk = _CHUNK.decode(data)
    except msgspec.ValidationError as mismatch:
        return Chunk(error=_error_in(data, f"is no completion: {mismatch}"))
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise Unreadable("is not JSON") from None
    except RecursionError:
        raise Unreadable("is nested too deep to be read") from None
    if chunk.error or chunk.choices is None:
        return Chunk(error=_error_in(data, "is no completion: it has no choices"))
    return chunk


def read_usage(usage: msgspec.Raw) -> Usage | None:
    """The server's account of tokens; None for null. Raises Unreadable for anything else."""
    try:
        read = _USAGE.decode(usage)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as mismatch:
        raise Unreadable(f"is malformed: {mismatch}") from None
    if read is None:
        return None
    details = read.prompt_tokens_details
    return Usage(
        prompt=read.prompt_tokens,
        completion=read.completion_tokens or 0,
        cached=details.cached_tokens if details else None,
    )


def _error_in(data: bytes | str, otherwise: str) -> str:
    """What an error document says. Raises Unreadable(otherwise) when the document is no error.

    Beside `{"error": ...}` there is the flat form of older engines and of Dynamo: a message with a code or a type.
    """
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Unreadable(otherwise) from None
    if isinstance(document, dict):
        flat = "code" in document or document.get("object") == "error"
        if error := document.get("error"):
            return message_of(error) or message_of(document) or _text(data)
        if flat and (said := message_of(document)):
            return said
    raise Unreadable(otherwise)


def _text(data: bytes | str) -> str:
    return data if isinstance(data, str) else data.decode("utf-8", "replace")
