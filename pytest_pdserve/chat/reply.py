"""What came back: an exchange read as an answer."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from pytest_pdserve.wire import Outcome

if TYPE_CHECKING:
    from pytest_pdserve.chat.request import ChatRequest
    from pytest_pdserve.evidence import Surroundings
    from pytest_pdserve.wire import Exchange


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call that the model asked for; `arguments` is the text as it came, valid JSON or not."""

    id: str | None
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The server's own account of tokens; `cached` is None where it doesn't say."""

    prompt: int
    completion: int
    cached: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One of the answers to a request (`n` of them were asked for; usually one)."""

    index: int = 0
    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str | None = None
    """In the server's words, at most 300 characters of them."""
    output_at: tuple[float, ...] = ()
    """When each event with output arrived, in monotonic seconds; text, reasoning and tool calls all count.

    One event may carry several tokens: these are events, not tokens.
    """

    @property
    def empty(self) -> bool:
        """Whether nothing at all was said."""
        return not (self.text or self.reasoning or self.tool_calls)


NO_CHOICE = Choice()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One question and its answer, whole or not: `outcome` and `reason` say how it ended.

    Times are seconds as the client saw them, from the moment the exchange began (a new connection included).
    They are None where the answer doesn't carry them: an unstreamed one has only `e2e`.
    """

    request: ChatRequest
    exchange: Exchange
    """What came over the wire; its header fields are masked, the bytes of its body are as they came."""
    outcome: Outcome
    reason: str
    """One line for people; empty when completed."""
    waited_for: str
    """What was being waited for when it ended: a phase of the wire, `first token`, `token 12`, `[DONE]`, or `done`."""
    choices: tuple[Choice, ...] = ()
    usage: Usage | None = None
    model: str | None = None
    oddities: tuple[str, ...] = ()
    """Departures from the protocol that did not keep the answer from being whole, one line each."""
    surroundings: Surroundings | None = None
    """What was seen around it while it hung; None when it didn't, or nobody looked."""
    notes: tuple[str, ...] = ()
    """What whoever reads a finding about it has to know of how it was asked, one line each."""

    @property
    def completed(self) -> bool:
        """Whether a whole answer came back in time."""
        return self.outcome is Outcome.COMPLETED

    @property
    def choice(self) -> Choice:
        """The first answer; an empty one when there is none."""
        return self.choices[0] if self.choices else NO_CHOICE

    @property
    def text(self) -> str:
        """The first answer's text."""
        return self.choice.text

    @property
    def reasoning(self) -> str:
        """The first answer's reasoning, where the server keeps it apart."""
        return self.choice.reasoning

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The first answer's tool calls."""
        return self.choice.tool_calls

    @property
    def finish_reason(self) -> str | None:
        """Why the first answer ended, in the server's words."""
        return self.choice.finish_reason

    @property
    def e2e(self) -> float | None:
        """Seconds until the whole answer was there; None if it never was."""
        timeline = self.exchange.timeline
        return None if timeline.ended is None else timeline.ended - timeline.started

    @property
    def ttft(self) -> float | None:
        """Seconds until the first output of any kind (text, reasoning, tool call): TTFT."""
        outputs = self.choice.output_at
        return outputs[0] - self.exchange.timeline.started if outputs else None

    @property
    def second_token(self) -> float | None:
        """Seconds between the first and the second event with output: the hand-off from prefill to decode."""
        outputs = self.choice.output_at
        return outputs[1] - outputs[0] if len(outputs) > 1 else None

    @property
    def itl(self) -> tuple[float, ...]:
        """Seconds between consecutive events with output: ITL, one value for each gap."""
        return tuple(later - earlier for earlier, later in pairwise(self.choice.output_at))
