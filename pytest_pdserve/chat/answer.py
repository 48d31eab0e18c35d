"""What a body says, gathered chunk by chunk; whether it amounts to an answer is judged elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pytest_pdserve.chat.chunk import NOTHING, Unreadable, read_chunk, read_usage
from pytest_pdserve.chat.foreign import CUT, cut, described, message_of
from pytest_pdserve.chat.reply import Choice, ToolCall
from pytest_pdserve.wire import read_events

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_pdserve.chat.chunk import Call, Part
    from pytest_pdserve.chat.reply import Usage
    from pytest_pdserve.wire import Event, Stamped

TERMINAL: Final = "[DONE]"
MOST_ODDITIES: Final = 10


@dataclass(slots=True)
class _DraftCall:
    id: str | None = None
    name: str | None = None
    arguments: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Draft:
    """A choice while its pieces come in."""

    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: dict[int, _DraftCall] = field(default_factory=dict)
    finish_reason: str | None = None
    output_at: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Answer:
    """What a body has said so far. Every text that comes out of it has gone through `mask`."""

    mask: Callable[[str], str]
    streamed: bool = False
    """Whether it was read as an event stream."""
    terminal: bool = False
    """Whether the stream's terminal event came."""
    usage: Usage | None = None
    model: str | None = None
    error: str | None = None
    """The error that the body says, one line."""
    garbled: str | None = None
    """Where the body is not the protocol, one line."""
    oddities: list[str] = field(default_factory=list)
    _drafts: dict[int, _Draft] = field(default_factory=dict)

    def read_stream(self, body: Stamped) -> None:
        """Read server-sent events up to the first that is not the protocol."""
        self.streamed = True
        stream = read_events(body)
        for number, event in enumerate(stream.events, start=1):
            if self.terminal:
                self.garbled = f"event {number} came after {TERMINAL}: {self._shown(event.data)}"
            elif event.data.strip() == TERMINAL:
                self.terminal = True
            else:
                self._read_event(number, event)
            if self.garbled:
                return
        if stream.error:
            self.garbled = self._shown(stream.error)
        elif stream.rest:
            self.odd(f"the stream ends inside an event: {self._shown(stream.rest)}")

    def read_document(self, body: bytes, content_type: str) -> None:
        """Read an unstreamed answer."""
        try:
            self._read_chunk(body, None)
        except Unreadable as unreadable:
            text = described(self.mask(body.decode("utf-8", "replace")))
            self.garbled = f"the body (content-type {self._shown(content_type)}) {unreadable}: {text}"

    def odd(self, departure: str) -> None:
        """Note a departure from the protocol, once, and only so many."""
        if departure not in self.oddities and len(self.oddities) < MOST_ODDITIES:
            self.oddities.append(departure)

    @property
    def outputs(self) -> int:
        """How many events with output came, over all choices."""
        return sum(len(draft.output_at) for draft in self._drafts.values())

    def choices(self) -> tuple[Choice, ...]:
        """The choices as far as they came, in order."""
        return tuple(
            Choice(
                index=index,
                text=self.mask("".join(draft.text)),
                reasoning=self.mask("".join(draft.reasoning)),
                tool_calls=tuple(self._tool_call(call) for _, call in sorted(draft.calls.items())),
                finish_reason=self._word(draft.finish_reason),
                output_at=tuple(draft.output_at),
            )
            for index, draft in sorted(self._drafts.items())
        )

    def _tool_call(self, call: _DraftCall) -> ToolCall:
        return ToolCall(
            id=self._word(call.id),
            name=self._word(call.name) or "",
            arguments=self.mask("".join(call.arguments)),
        )

    def _read_event(self, number: int, event: Event) -> None:
        try:
            self._read_chunk(event.data, event.at)
        except Unreadable as unreadable:
            if event.name == "error":
                self._refuse(event.data)
            else:
                self.garbled = f"event {number} {unreadable}: {self._shown(event.data)}"

    def _read_chunk(self, data: bytes | str, at: float | None) -> None:
        """One chunk of a stream (`at` is its arrival), or a whole unstreamed answer (`at` is None)."""
        chunk = read_chunk(data)
        if chunk.error:
            self._refuse(message_of(chunk.error) or "")
            return
        self.model = self._word(chunk.model) or self.model
        try:
            self.usage = read_usage(chunk.usage) or self.usage
        except Unreadable as unreadable:
            self.odd(f"usage {self._shown(str(unreadable))}")
        for part in chunk.choices or ():
            self._read_part(part, at)

    def _read_part(self, part: Part, at: float | None) -> None:
        draft = self._drafts.setdefault(part.index or 0, _Draft())
        said = part.delta or part.message or NOTHING
        text = said.content or said.refusal or part.text or ""
        reasoning = said.reasoning_content or said.reasoning or ""
        calls = said.tool_calls or ()
        if text or reasoning or calls:
            draft.text.append(text)
            draft.reasoning.append(reasoning)
            for call in calls:
                _read_call(draft, call)
            if at is not None:
                draft.output_at.append(at)
            if draft.finish_reason is not None:
                self.odd(f"output came after finish_reason {self._word(draft.finish_reason)!r}")
        if part.finish_reason is not None:
            if draft.finish_reason is not None:
                earlier, later = self._word(draft.finish_reason), self._word(part.finish_reason)
                self.odd(f"a second finish_reason: {earlier!r}, then {later!r}")
            draft.finish_reason = part.finish_reason

    def _refuse(self, error: str) -> None:
        self.error = self.error or self._shown(error) or "without a message"

    def _shown(self, text: str) -> str:
        # Masked before it is cut, lest half a secret remains.
        return cut(self.mask(text))

    def _word(self, text: str | None) -> str | None:
        return None if text is None else self.mask(text)[:CUT]


def _read_call(draft: _Draft, call: Call) -> None:
    # An unstreamed call has no index: it is the next one.
    place = len(draft.calls) if call.index is None else call.index
    known = draft.calls.setdefault(place, _DraftCall())
    known.id = call.id or known.id
    if call.function is not None:
        known.name = call.function.name or known.name
        known.arguments.append(call.function.arguments or "")
