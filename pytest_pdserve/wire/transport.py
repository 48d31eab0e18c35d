"""The httpx transport."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx

if TYPE_CHECKING:
    import ssl


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """How many connections a transport may have, and how long idle ones are kept."""

    connections: int = 1024
    """Connections at once, over all hosts; a request beyond it waits, then fails with `httpx.PoolTimeout`."""
    idle: int = 64
    """Idle connections kept for reuse, over all hosts."""
    idle_seconds: float = 60.0
    """How long an idle connection is kept."""


class Transport(httpx.AsyncBaseTransport):
    """HTTP/1.1 for httpx, with every step stamped."""

    def __init__(
        self, *, ssl_context: ssl.SSLContext | None = None, limits: ConnectionLimits = ConnectionLimits()
    ) -> None:
        self._ssl_context = ssl_context
        self._limits = limits
