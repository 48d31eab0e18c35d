"""One connection: an asyncio protocol that carries one exchange at a time."""

from __future__ import annotations

import asyncio
import os
from contextlib import aclosing
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast

import httpx

from pytest_pdserve.wire.incoming import HIGH_WATER, Incoming
from pytest_pdserve.wire.reader import ResponseReader
from pytest_pdserve.wire.request import head_bytes, pieces
from pytest_pdserve.wire.words import seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_pdserve.wire.timeline import Timeline


class Origin(NamedTuple):
    """Where a connection goes."""

    scheme: str
    host: str
    port: int

    @property
    def place(self) -> str:
        """Host and port for people."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Owner(Protocol):
    """Who keeps the connections: the pool."""

    def done(self, connection: Connection, /) -> None:
        """A connection's exchange is over; `idle_since` says whether it is free for another one."""

    def gone(self, connection: Connection, /) -> None:
        """A connection is closed for good."""


class Connection(asyncio.Protocol):
    """A connection to `origin`. Between exchanges, anything that arrives closes it."""

    def __init__(self, origin: Origin, owner: Owner) -> None:
        self.origin = origin
        self.idle_since: float | None = None
        """Since when the connection has been free for another request, in monotonic seconds; None if it isn't."""
        self.peer: str | None = None
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._failure: Exception | None = None
        self._incoming: Incoming | None = None
        self._sender: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._reading = True

    # what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection (TLS included) is there."""
        self._transport = cast("asyncio.Transport", transport)
        # "may be written to" shall mean that everything so far went to the operating system: that is `sent`.
        # (The limit can't be 0: asyncio's TLS would pause on an empty buffer.)
        self._transport.set_write_buffer_limits(high=1, low=0)
        peer = transport.get_extra_info("peername")
        if peer:
            self.peer = Origin("", peer[0], peer[1]).place

    def data_received(self, data: bytes) -> None:
        """Bytes have arrived: stamp and parse them."""
        at = monotonic()
        incoming = self._incoming
        if incoming is None:
            self.abort()
            return
        reader = incoming.reader
        reader.feed(data, at)
        if reader.complete or reader.error is not None:
            self.finish()
        elif not incoming.collecting:
            incoming.wake()
            self._hold_back(incoming)

    def eof_received(self) -> bool:
        """The server sent its FIN."""
        if self._incoming is None:
            self.abort()
        else:
            self._incoming.reader.eof(monotonic())
            self.finish()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed, by us or by the server, or failed."""
        if self._incoming is not None:
            self._read_leftovers(self._incoming)
        if self._incoming is not None:
            self._incoming.reader.lost(exc)
            self.finish()
        self.idle_since = None
        self._transport = None
        self._failure = exc
        self._writable.set()
        self._owner.gone(self)

    def pause_writing(self) -> None:
        """Not everything written so far has left."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Everything written so far has left."""
        self._writable.set()

    # what the pool, the transport and the response use

    @property
    def connected(self) -> bool:
        """Neither side has closed it yet, as far as is known."""
        return self._transport is not None

    async def request(
        self, request: httpx.Request, timeline: Timeline, timeouts: Mapping[str, float | None]
    ) -> Incoming:
        """Send a request and wait for the final response's head.

        The body goes on being sent meanwhile and afterwards, until it is all sent, the response is over, or the
        response says that it is an error. Raises httpx's exceptions; the connection is done then.
        """
        if self.idle_since is not None:
            timeline.reused = True
            timeline.idle = monotonic() - self.idle_since
        self.idle_since = None
        timeline.peer = self.peer
        reader = ResponseReader(timeline, method=request.method)
        incoming = Incoming(reader, self, read_timeout=timeouts.get("read"))
        self._incoming = incoming
        if self._transport is None:
            reader.lost(self._failure)
            self.finish()
        else:
            self._sender = asyncio.create_task(self._send(request, timeline, timeouts.get("write")))
            self._sender.add_done_callback(lambda task: _sent(task, incoming))
        try:
            head = await incoming.head()
        except BaseException:
            incoming.give_up(httpx.ReadError("the request was given up on this side"))
            raise
        if head.status >= 400:
            self._stop_sending()
        return incoming

    def finish(self) -> None:
        """The current exchange is over: free the connection for another one, or close it."""
        incoming = self._incoming
        if incoming is None:
            return
        self._incoming = None
        self._stop_sending()
        reader = incoming.reader
        reusable = reader.complete and reader.keep_alive and reader.timeline.sent is not None
        if reusable and self._transport is not None and not self._transport.is_closing():
            self.idle_since = monotonic()
        else:
            self.abort()
        self._owner.done(self)
        incoming.leave()

    def abort(self) -> None:
        """Close the connection at once; nothing more is sent or read."""
        self.idle_since = None
        if self._incoming is not None:
            self._incoming.give_up(httpx.ReadError("the client was closed"))
        elif self._transport is not None:
            self._transport.abort()

    def after_reading(self, incoming: Incoming) -> None:
        """Go on reading if it was paused because too much was waiting."""
        if incoming is self._incoming and (incoming.collecting or len(incoming.body) <= HIGH_WATER):
            self._resume()

    # sending

    async def _send(self, request: httpx.Request, timeline: Timeline, write_timeout: float | None) -> None:
        async with aclosing(pieces(request, head_bytes(request))) as outgoing:
            async for piece in outgoing:
                if self._transport is None:
                    return
                self._transport.write(piece)
                await self._drain(write_timeout)
        if self._transport is not None:
            timeline.sent = monotonic()

    async def _drain(self, write_timeout: float | None) -> None:
        if self._writable.is_set():
            return
        try:
            async with asyncio.timeout(write_timeout):
                await self._writable.wait()
        except TimeoutError:
            raise httpx.WriteTimeout(
                f"the server took nothing of the request for {seconds(write_timeout or 0.0)}"
            ) from None

    def _stop_sending(self) -> None:
        if self._sender is not None and not self._sender.done():
            self._sender.cancel()

    # reading

    def _hold_back(self, incoming: Incoming) -> None:
        if self._reading and len(incoming.body) > HIGH_WATER and self._transport is not None:
            self._reading = False
            self._transport.pause_reading()

    def _resume(self) -> None:
        if not self._reading and self._transport is not None:
            self._reading = True
            self._transport.resume_reading()

    def _read_leftovers(self, incoming: Incoming) -> None:
        """Read what the kernel still holds of a response that the server sent before it reset the connection.

        A failing write makes asyncio drop the connection without reading any further, but an early answer
        (413, then RST) is what says why. Only for plain connections: TLS bytes can't be read past asyncio.
        """
        transport = self._transport
        if transport is None or self.origin.scheme != "http":
            return
        sock = transport.get_extra_info("socket")
        if sock is None or sock.fileno() < 0:
            return
        for _ in range(_LEFTOVER_READS):
            try:
                data = os.read(sock.fileno(), 64 * 1024)
            except OSError:  # nothing there
                return
            if (
                not data
            ):  # reading from a connection that was reset looks like this, so what asyncio said stands
                return
            incoming.reader.feed(data, monotonic())
            if incoming.reader.over:
                self.finish()
                return


_LEFTOVER_READS: Final = 64


def _sent(task: asyncio.Task[None], incoming: Incoming) -> None:
    """When sending has ended: pass on what went wrong with it, and let the read timeout begin."""
    if not task.cancelled():
        error = task.exception()
        if isinstance(error, Exception):
            incoming.give_up(error)
    incoming.wake()
