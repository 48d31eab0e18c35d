"""The connections of one transport: how many there may be, and which are free."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx

from pytest_pdserve.wire.words import counted, seconds

if TYPE_CHECKING:
    from pytest_pdserve.wire.connection import Connection, Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """How many connections a transport may have, and how long idle ones are kept."""

    connections: int = 1024
    """Connections at once, over all hosts; a request beyond it waits, then fails with `httpx.PoolTimeout`."""
    idle: int = 64
    """Idle connections kept for reuse, over all hosts; the oldest go first."""
    idle_seconds: float = 60.0
    """How long an idle connection is kept."""


class Pool:
    """Leases for connections, and the idle ones.

    Whoever wants a connection takes a lease (`lease`), then an idle connection (`take`) or opens one (after
    `make_room`, then `add`). Connections report themselves: `done` when their exchange is over, which ends the
    lease, and `gone` when closed. A lease without a connection is given back with `release`.
    """

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._leases = asyncio.Semaphore(limits.connections)
        self._leased = 0
        self._open: set[Connection] = set()
        self._idle: dict[Connection, asyncio.TimerHandle] = {}

    async def lease(self, timeout: float | None) -> None:
        """Wait for the leave to have a connection. Raises httpx.PoolTimeout after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._leases.acquire()
        except TimeoutError:
            limit = counted(self._limits.connections, "connection")
            raise httpx.PoolTimeout(
                f"no connection became free within {seconds(timeout or 0.0)} (limit: {limit})"
            ) from None
        self._leased += 1

    def release(self) -> None:
        """Give a lease back."""
        self._leased -= 1
        self._leases.release()

    def take(self, origin: Origin) -> Connection | None:
        """The idle connection to `origin` that was used last, if there is one."""
        for connection in reversed(self._idle):
            if connection.origin == origin and connection.idle_since is not None:
                self._idle.pop(connection).cancel()
                return connection
        return None

    def make_room(self) -> None:
        """Close the oldest idle connections until there is room for the caller's new one."""
        while self._idle and self._leased + len(self._idle) > self._limits.connections:
            self._close_oldest()

    def add(self, connection: Connection) -> None:
        """A new connection is there."""
        self._open.add(connection)

    def done(self, connection: Connection) -> None:
        """A connection's exchange is over: the lease ends, and the connection may wait for another one."""
        self.release()
        if connection.idle_since is None:
            return
        loop = asyncio.get_running_loop()
        self._idle[connection] = loop.call_later(self._limits.idle_seconds, connection.abort)
        if len(self._idle) > self._limits.idle:
            self._close_oldest()

    def gone(self, connection: Connection) -> None:
        """A connection is closed for good."""
        self._open.discard(connection)
        timer = self._idle.pop(connection, None)
        if timer is not None:
            timer.cancel()

    @property
    def open(self) -> int:
        """Connections that are open now."""
        return len(self._open)

    async def aclose(self) -> None:
        """Close every connection, and see that they are closed."""
        for connection in tuple(self._open):
            connection.abort()
        for _ in range(_TURNS_TO_CLOSE):
            if not self._open:
                return
            await asyncio.sleep(0)

    def _close_oldest(self) -> None:
        connection = next(iter(self._idle))
        self._idle.pop(connection).cancel()
        connection.abort()


_TURNS_TO_CLOSE = 10
