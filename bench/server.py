"""The one server of a run: paced server-sent events, each with the moment at which it was sent."""

from __future__ import annotations

import asyncio
import sys
from time import monotonic
from typing import cast

import uvloop

_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    b"Cache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n"
)
_EVENT = (
    b'data: {"id": "chatcmpl-0123456789abcdef", "object": "chat.completion.chunk", "sent": %.7f, '
    b'"model": "benchmark", "choices": [{"index": 0, "delta": {"content": " token"}, "logprobs": null, '
    b'"finish_reason": null}]}\n\n'
)


class _Stream(asyncio.Protocol):
    """One connection; every request on it is answered with a stream."""

    def __init__(self) -> None:
        self._received = b""
        self._left = 0
        self._interval = 0.0
        self._next = 0.0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    def data_received(self, data: bytes) -> None:
        self._received += data
        if b"\r\n\r\n" not in self._received or self._transport is None:
            return
        _, path, _ = self._received.split(b" ", 2)
        self._received = b""
        _, _, events, rate = path.split(b"/")
        self._left = int(events)
        self._interval = 1 / float(rate)
        self._transport.write(_HEAD)
        self._next = asyncio.get_running_loop().time()
        self._send()

    def _send(self) -> None:
        if self._transport is None:
            return
        if not self._left:
            self._transport.write(b"0\r\n\r\n")
            return
        self._left -= 1
        event = _EVENT % monotonic()
        self._transport.write(b"%x\r\n%b\r\n" % (len(event), event))
        self._next += self._interval
        asyncio.get_running_loop().call_at(self._next, self._send)


async def _serve() -> None:
    server = await asyncio.get_running_loop().create_server(_Stream, "127.0.0.1", 0, backlog=512)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve())
