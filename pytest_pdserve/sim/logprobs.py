"""Log probabilities of the toy model: made up, the same for the same token, and never above 0."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

from pytest_pdserve.sim.tokens import EOS

if TYPE_CHECKING:
    from collections.abc import Sequence

_EOS_TEXT = "<|im_end|>"
_GAP = 2.5
"""How far below the chosen token its alternatives lie: the toy model is sure of itself."""


def chat_entry(piece: bytes, top: int) -> dict[str, Any]:
    """One token's entry in a chat's `logprobs.content`, with so many alternatives."""
    entry = _entry(_text(piece), _value(piece), piece)
    others = [_entry(text, value, text.encode()) for text, value in _alternatives(piece, top)]
    return {**entry, "top_logprobs": others}


def completion_block(pieces: Sequence[bytes], top: int, offset: int) -> dict[str, Any]:
    """The `logprobs` of a plain completion for some tokens, the first of which begins at `offset` characters."""
    texts = [_text(piece) for piece in pieces]
    offsets = [offset + sum(map(len, texts[:place])) for place in range(len(texts))]
    return {
        "text_offset": offsets,
        "token_logprobs": [_value(piece) for piece in pieces],
        "tokens": texts,
        "top_logprobs": [dict(_alternatives(piece, top)) for piece in pieces] if top else None,
    }


def _entry(text: str, value: float, piece: bytes) -> dict[str, Any]:
    return {"token": text, "logprob": value, "bytes": list(_EOS_TEXT.encode() if piece == EOS else piece)}


def _text(piece: bytes) -> str:
    return _EOS_TEXT if piece == EOS else piece.decode("utf-8", "replace")


def _value(piece: bytes) -> float:
    return -(zlib.crc32(piece) % 1000) / 10_000


def _alternatives(piece: bytes, top: int) -> list[tuple[str, float]]:
    """The likeliest tokens, the chosen one first."""
    others = [(f" alt{place}", _value(piece) - _GAP * place) for place in range(1, top)]
    return [(_text(piece), _value(piece)), *others][:top]
