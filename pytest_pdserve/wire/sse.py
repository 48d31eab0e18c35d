"""Server-sent events, read from a stamped body."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_pdserve.wire.stamped import Stamped


@dataclass(frozen=True, slots=True, kw_only=True)
class SseLimits:
    """How large a stream and its parts may be, in bytes."""

    line: int = 4 * 1024 * 1024
    event: int = 8 * 1024 * 1024
    total: int = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Event:
    """One dispatched event."""

    data: str
    at: float
    """Arrival, in monotonic seconds, of the chunk in which the event's final blank line ended."""
    name: str = "message"
    id: str = ""


@dataclass(frozen=True, slots=True)
class EventStream:
    """The events of one body."""

    events: list[Event]
    rest: str
    """An unterminated event at the end, cut to a few hundred characters; empty when there is none."""
    error: str | None
    """Where and how the body is not the protocol; None when it is."""


def read_events(body: Stamped, *, limits: SseLimits = SseLimits()) -> EventStream:
    """All events of `body`, up to the first error."""
    raise NotImplementedError
