"""The stamped phases of one exchange."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Phase(StrEnum):
    """What an exchange is waiting for, in the order in which things come."""

    RESOLVE = "resolve"
    CONNECT = "connect"
    TLS = "TLS"
    SEND = "send"
    HEADERS = "headers"
    FIRST_BYTE = "first byte"
    BODY = "body"
    DONE = "done"


@dataclass(slots=True, kw_only=True)
class Timeline:
    """When each step of one exchange was reached.

    All times are seconds of the monotonic clock (`time.monotonic()`, which is also `loop.time()`); None means
    that the step was not reached, or was not needed: a reused connection has no `resolved`, `connected` and
    `secured`, a plain one has no `secured`, a response without a body has no `first_byte` and `last_byte`.

    The transport fills it in as the exchange goes, so that whoever gives up half-way still has it.
    """

    started: float
    admitted: float | None = None
    """The pool handed out a connection, or the leave to open one."""
    resolved: float | None = None
    """The host's addresses were there."""
    connected: float | None = None
    """The TCP connection was established."""
    secured: float | None = None
    """The TLS handshake was done."""
    sent: float | None = None
    """The last byte of the request was handed to the operating system (or to TLS)."""
    headers: float | None = None
    """The final (not 1xx) response's header block had arrived."""
    first_byte: float | None = None
    """The chunk with the body's first byte arrived."""
    last_byte: float | None = None
    """The chunk with the latest body byte so far arrived."""
    ended: float | None = None
    """The whole message was there. None for an exchange that broke off or was given up."""
    reused: bool = False
    """The request went out on a connection that had served another one before."""
    idle: float | None = None
    """For how many seconds the reused connection had been idle."""
    tls: bool = False
    """The connection is a TLS one."""
    peer: str | None = None
    """The address and port at the other end, such as `127.0.0.1:30001` or `[::1]:30001`."""

    @property
    def phase(self) -> Phase:
        """The phase that is being waited for, or `DONE` when the whole message is there."""
        if self.ended is not None:
            return Phase.DONE
        if self.first_byte is not None:
            return Phase.BODY
        if self.headers is not None:
            return Phase.FIRST_BYTE
        if self.sent is not None:
            return Phase.HEADERS
        return self._phase_before_sent()

    def _phase_before_sent(self) -> Phase:
        if self.reused:
            return Phase.SEND
        if self.connected is None:
            return Phase.RESOLVE if self.resolved is None else Phase.CONNECT
        return Phase.TLS if self.tls and self.secured is None else Phase.SEND

    def offsets(self) -> dict[str, float]:
        """Seconds from `started` to each step that was reached, in the order of the steps."""
        reached = ((step, getattr(self, step)) for step in _STEPS)
        return {step: at - self.started for step, at in reached if at is not None}


_STEPS: Final = (
    "admitted",
    "resolved",
    "connected",
    "secured",
    "sent",
    "headers",
    "first_byte",
    "last_byte",
    "ended",
)
