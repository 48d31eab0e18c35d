"""How far the answers to one request have come, as a client may be told of it: text, tool calls, log probabilities."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_pdserve.sim.tools import CallPart, ToolReader

if TYPE_CHECKING:
    from pytest_pdserve.sim.ask import Ask
    from pytest_pdserve.sim.output import Output, Whole


@dataclass(frozen=True, slots=True)
class Step:
    """What one step adds to one answer."""

    index: int
    text: str
    calls: tuple[CallPart, ...]
    tokens: tuple[bytes, ...]
    """The tokens whose log probabilities are due now; empty unless they were asked for."""
    offset: int
    """Characters of the answer before them."""
    finish: str | None


@dataclass(slots=True)
class _Choice:
    reader: ToolReader | None
    due: list[bytes] = field(default_factory=list)
    offset: int = 0
    finished: bool = False


class Progress:
    """The state of every answer to one request."""

    def __init__(self, ask: Ask) -> None:
        self._choices = [_Choice(ToolReader() if ask.tools else None) for _ in range(ask.n)]
        self._counts = [0] * ask.n

    @property
    def output_tokens(self) -> int:
        """Tokens of all answers so far."""
        return sum(self._counts)

    @property
    def finished(self) -> bool:
        """Whether every answer has ended."""
        return all(choice.finished for choice in self._choices)

    def step(self, output: Output) -> Step:
        """Take one step of one answer."""
        choice = self._choices[output.index]
        self._counts[output.index] = output.output_tokens
        text = output.text
        calls: list[CallPart] = []
        finish = output.finish
        if (reader := choice.reader) is not None:
            text, calls = reader.feed(output.text)
            if finish is not None:
                rest, parts = reader.finish()
                text, calls = text + rest, [*calls, *parts]
                if finish == "stop" and reader.calls and not reader.inside:
                    finish = "tool_calls"
        choice.finished = finish is not None
        choice.due += output.tokens
        tokens: tuple[bytes, ...] = ()
        offset = choice.offset
        if choice.due and (text or calls or finish is not None):
            tokens, choice.due = tuple(choice.due), []
            choice.offset += len(text)
        return Step(output.index, text, tuple(calls), tokens, offset, finish)


@dataclass(frozen=True, slots=True)
class Said:
    """What an unstreamed answer says: text, and calls as (name, arguments)."""

    text: str
    calls: tuple[tuple[str, str], ...]


def said_whole(answer: Whole, step: Step) -> Said:
    """Read a whole answer. One that ends inside a call keeps its raw text, as vLLM's truncated answer shows."""
    calls: dict[int, tuple[str, str]] = {}
    for part in step.calls:
        name, arguments = calls.get(part.index, ("", ""))
        calls[part.index] = (part.name or name, arguments + part.arguments)
    if step.finish == "length":
        return Said(answer.text, ())
    return Said(step.text, tuple(calls.values()))
