"""The oracle that every model has: copying by example.

Asked plainly to repeat a code, a 135M-parameter model did so 0 times of 10; after three worked examples in the
conversation six digits came back exactly 10 times of 10 (measured through a real prefill-decode deployment).
The codes differ in every request, so a foreign one in an answer is proof of cross-talk.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Mapping

    from pytest_pdserve.chat.request import Message

EXAMPLES = 3
DIGITS = 6
MOST_DRAWS = 20_000
COPY_WAYS: Final[tuple[Mapping[str, Any], ...]] = (
    {"max_tokens": 16},
    {"max_tokens": 16, "extra": {"chat_template_kwargs": {"enable_thinking": False, "thinking": False}}},
    {"max_tokens": 512},
)
"""Parameters to ask for a copy with, the first that works being the model's: as it is (six digits may be a token each,
and end one more); told not to think (chat templates know one name or the other); with room to think before."""
COPY_MOST_TOKENS = 512
"""Output tokens of the dearest way."""
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
    """The first run of six or more digits in `text`; thoughts that a server left in it don't count."""
    found = re.search(rf"[0-9]{{{DIGITS},}}", text.rpartition("</think>")[2])
    return found.group() if found else None


def new_copying(source: random.Random, *, examples: int = EXAMPLES) -> Copying:
    """A fresh code and fresh examples: see `new_copyings`."""
    return new_copyings(source, 1, examples=examples)[0]


def new_copyings(source: random.Random, count: int, *, examples: int = EXAMPLES) -> list[Copying]:
    """Fresh codes and examples for `count` requests that run together.

    Every code has six different digits (a 135M-parameter model got one in four wrong of those made of two digits,
    none of 200 random ones). In one conversation no two codes share three digits in a row, and in the whole batch no
    two have the same digits in more than three places: so a model's own slip is never another request's code.

    Raises ValueError when so many codes are not found; 300 requests with three examples each always were, and
    60 examples in one conversation.
    """
    taken: set[str] = set()
    return [_draw_one(source, examples, taken) for _ in range(count)]


def _draw_one(source: random.Random, examples: int, taken: set[str]) -> Copying:
    codes: list[str] = []
    runs: set[str] = set()
    for _ in range(MOST_DRAWS):
        if len(codes) > examples:
            break
        code = "".join(source.sample("0123456789", DIGITS))
        own_runs = {code[start : start + 3] for start in range(DIGITS - 2)}
        own_places = set(_places(code))
        if code[0] != "0" and runs.isdisjoint(own_runs) and taken.isdisjoint(own_places):
            codes.append(code)
            runs |= own_runs
            taken |= own_places
    else:
        raise ValueError(f"there are not so many codes that differ enough: {examples + 1} more are wanted")
    return Copying(code=codes[-1], examples=tuple(codes[:-1]))


def _places(code: str) -> Iterator[str]:
    """The code with any two of its places blank: two codes have one in common when they agree in four places."""
    for first, second in combinations(range(DIGITS), 2):
        yield f"{code[:first]}_{code[first + 1 : second]}_{code[second + 1 :]}"
