"""Our transport for synchronous users of httpx."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import httpx

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from pytest_pdserve.wire.loop import LoopThread
    from pytest_pdserve.wire.transport import Transport

STEP: Final = 3600.0
"""Backstop in seconds for one step of an exchange; the request's own httpx timeouts come first."""
CLOSING: Final = 10.0
"""Seconds that closing a response or all connections may take."""


class BridgeTransport(httpx.BaseTransport):
    """Sends a synchronous client's requests through a `Transport` on the loop thread."""

    def __init__(self, transport: Transport, loop: LoopThread) -> None:
        self._transport = transport
        self._loop = loop

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send one request; raises httpx's own exceptions."""
        # A body that a generator makes can't be made on the loop; once read, httpx keeps it as a plain one.
        request.read()
        on_loop = httpx.Request(
            request.method,
            request.url,
            headers=request.headers,
            stream=request.stream,
            extensions=request.extensions,
        )
        response = self._loop.run(self._transport.handle_async_request, on_loop, bound=STEP)
        stream = response.stream
        if not isinstance(stream, httpx.AsyncByteStream):
            raise TypeError("the transport's stream is not an asynchronous one")
        return httpx.Response(
            response.status_code,
            headers=response.headers,
            stream=_BridgeStream(stream, self._loop),
            extensions=response.extensions,
        )

    def close(self) -> None:
        """Close all connections."""
        self._loop.run(self._transport.aclose, bound=CLOSING)


class _BridgeStream(httpx.SyncByteStream):
    def __init__(self, stream: httpx.AsyncByteStream, loop: LoopThread) -> None:
        self._stream = stream
        self._loop = loop

    def __iter__(self) -> Iterator[bytes]:
        chunks = aiter(self._stream)
        while (chunk := self._loop.run(_next_chunk, chunks, bound=STEP)) is not None:
            yield chunk

    def close(self) -> None:
        self._loop.run(self._stream.aclose, bound=CLOSING)


async def _next_chunk(chunks: AsyncIterator[bytes]) -> bytes | None:
    return await anext(chunks, None)
