"""The oracle that every model has: copying by example.

Asked plainly to repeat a code, a 135M-parameter model did so 0 times of 10; after three worked examples in the
conversation six digits came back exactly 10 times of 10 (measured through a real prefill-decode deployment).
The codes differ in every request, so a foreign one in an answer is proof of cross-talk.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

    from pytest_pdserve.chat.request import Message

EXAMPLES = 3
DIGITS = 6
COPY_MAX_TOKENS = 16
"""Enough for six digits where each is a token of its own, and for what a chat template adds."""
COPY_PROMPT_TOKENS = 400
"""The most that one such conversation's prompt can have: seven messages of at most twelve bytes each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copying:
    """One code to copy, with the examples that show how."""

    code: str
    examples: tuple[str, ...]

    @property
    def messages(self) -> list[Message]:
        """The conversation whose last message asks for `code`."""
        shown = [message for code in self.examples for message in turn(code, code)]
        return [*shown, {"role": "user", "content": f"code: {self.code}"}]

    def copied(self, text: str) -> bool:
        """Whether `text` is an answer with the asked code first."""
        return first_code(text) == self.code


def turn(asked: str, answered: str) -> list[Message]:
    """One round of copying: the user's message and the assistant's."""
    return [{"role": "user", "content": f"code: {asked}"}, {"role": "assistant", "content": answered}]


def first_code(text: str) -> str | None:
    """The first run of six or more digits in `text`."""
    found = re.search(rf"\d{{{DIGITS},}}", text)
    return found.group() if found else None


def new_copying(source: random.Random, *, examples: int = EXAMPLES) -> Copying:
    """A fresh code and fresh examples, all different."""
    codes = source.sample(range(10 ** (DIGITS - 1), 10**DIGITS), examples + 1)
    return Copying(code=str(codes[0]), examples=tuple(str(code) for code in codes[1:]))
