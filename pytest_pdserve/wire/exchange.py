"""One request and what came back: exactly one outcome, and never an exception for what a server does."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import httpx

    from pytest_pdserve.wire.failures import Ending
    from pytest_pdserve.wire.stamped import Stamped
    from pytest_pdserve.wire.timeline import Phase, Timeline

MAX_BYTES: Final = 16 * 1024 * 1024


class Outcome(StrEnum):
    """How an exchange ended, as far as HTTP can tell."""

    COMPLETED = "completed"
    """A whole message with a 2xx status."""
    REFUSED = "refused"
    """A whole or partial message with a 4xx or 5xx status."""
    HUNG = "hung"
    """The deadline passed."""
    BROKEN = "broken"
    """The connection failed, or ended before the message did."""
    GARBLED = "garbled"
    """What came back is not the protocol, not decodable, or too large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One request and what came back."""

    method: str
    url: str
    outcome: Outcome
    reason: str
    """One line for people; empty when completed."""
    phase: Phase
    """The phase that was being waited for at the end; `DONE` when the whole message was there."""
    timeline: Timeline
    status: int | None
    headers: tuple[tuple[str, str], ...]
    """The response's header fields in order, as received."""
    body: Stamped
    """The response's body, content-decoded, at most `max_bytes`; what had arrived, if it isn't whole."""
    ending: Ending
    trailers: tuple[tuple[str, str], ...]


async def exchange(
    client: httpx.AsyncClient,
    request: httpx.Request,
    *,
    deadline: float,
    connection: Literal["fresh", "reuse"] = "reuse",
    max_bytes: int = MAX_BYTES,
    while_hung: Callable[[Exchange], Awaitable[None]] | None = None,
) -> Exchange:
    """Send `request` and gather what comes back, for at most `deadline` seconds from now."""
    raise NotImplementedError
