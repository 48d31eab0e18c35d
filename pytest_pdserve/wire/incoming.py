"""The response to one request, while it comes in and afterwards."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Final

import httpx

from pytest_pdserve.wire.words import seconds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pytest_pdserve.wire.connection import Connection
    from pytest_pdserve.wire.reader import Head, ResponseReader
    from pytest_pdserve.wire.stamped import Stamped

HIGH_WATER: Final = 256 * 1024
"""With so many bytes waiting for a consumer, reading from the connection pauses."""


class Incoming(httpx.AsyncByteStream):
    """A response's body for httpx (`async for`, `aclose`), or to be gathered in one go (`collect`).

    It leaves the connection when the message is over; until then, closing it closes the connection, so that the
    server sees that nobody listens any more.
    """

    def __init__(self, reader: ResponseReader, connection: Connection, *, read_timeout: float | None) -> None:
        self.reader = reader
        self.collecting = False
        """Bytes are gathered without waking anybody before the end."""
        self._connection: Connection | None = connection
        self._read_timeout = read_timeout
        self._waiter: asyncio.Future[None] | None = None

    async def head(self) -> Head:
        """Wait for the final response's head. Raises what httpx has for whatever prevents it."""
        reader = self.reader
        while reader.head is None:
            if reader.error is not None:
                raise reader.error
            await self._wait(None if reader.timeline.sent is None else self._read_timeout)
        return reader.head

    async def collect(self, max_bytes: int) -> Stamped:
        """Gather the rest of the body, stamped, and wake up once at the end.

        Raises what httpx has for whatever prevents the message from being whole, also for a body of more than
        `max_bytes` bytes; `body` has what had arrived even then.
        """
        reader = self.reader
        reader.set_limit(max_bytes)
        self.collecting = True
        if self._connection is not None:
            self._connection.after_reading(self)
        while not reader.over:
            await self._wait(self._until_too_quiet(), complain=False)
        if reader.error is not None:
            raise reader.error
        return reader.body

    @property
    def body(self) -> Stamped:
        """What has arrived of the body and was not yet taken by iterating."""
        return self.reader.body

    @property
    def trailers(self) -> tuple[tuple[bytes, bytes], ...]:
        """The trailers, once the body is whole."""
        return tuple(self.reader.trailers)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield body bytes as they come."""
        reader = self.reader
        while True:
            if reader.body.data:
                data = reader.take()
                if self._connection is not None:
                    self._connection.after_reading(self)
                yield data
            elif reader.error is not None:
                raise reader.error
            elif reader.complete:
                return
            else:
                await self._wait(self._read_timeout)

    async def aclose(self) -> None:
        """Close the connection, unless the message is over."""
        self.give_up(httpx.ReadError("the response was closed on this side before it was whole"))

    def give_up(self, error: Exception) -> None:
        """End it with `error` and close the connection, unless the message is over."""
        if self._connection is not None:
            self.reader.fail(error)
            self._connection.finish()

    def wake(self) -> None:
        """Let whoever waits look again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def leave(self) -> None:
        """The connection is no longer ours."""
        self._connection = None
        self.wake()

    def _until_too_quiet(self) -> float | None:
        """Seconds until the connection has been silent for too long; at that point, the complaint."""
        if self._read_timeout is None:
            return None
        timeline = self.reader.timeline
        latest = timeline.last_byte or timeline.headers or timeline.started
        left = latest + self._read_timeout - monotonic()
        if left <= 0:
            raise self._too_quiet()
        return left

    def _too_quiet(self) -> httpx.ReadTimeout:
        phase = self.reader.timeline.phase
        return httpx.ReadTimeout(
            f"nothing came for {seconds(self._read_timeout or 0.0)} (waiting for: {phase})"
        )

    async def _wait(self, timeout: float | None, *, complain: bool = True) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout):
                await self._waiter
        except TimeoutError:
            if complain:
                raise self._too_quiet() from None
        finally:
            self._waiter = None
