"""One step of an answer, as it goes from an engine to whoever writes it in the engine family's form."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Output:
    """The text that may be shown and, at the end, why the answer ended.

    `matched` is the stop string, or "" when the model itself ended the answer. Both counts are so far.
    """

    text: str
    output_tokens: int
    cached_tokens: int
    finish: str | None = None
    matched: str | None = None
    index: int = 0
    """Which of the request's `n` answers it belongs to."""
    tokens: tuple[bytes, ...] = ()
    """The step's token, when log probabilities were asked for."""


@dataclass(frozen=True, slots=True)
class Whole:
    """One answer at its end: all its text and tokens, and its last step."""

    text: str
    tokens: tuple[bytes, ...]
    last: Output
