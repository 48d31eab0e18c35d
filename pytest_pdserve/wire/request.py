"""An httpx request as bytes for the wire."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import httpx

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

PIECE: Final = 64 * 1024
"""Most bytes handed to a socket at once, so that a slow reader at the other end holds us back."""

_TOKEN: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE: Final = re.compile(rb"[^\x00-\x08\x0a-\x1f\x7f]*")
_PATH: Final = re.compile(rb"[\x21-\x7e]+")


def head_bytes(request: httpx.Request) -> bytes:
    """The request line and header block.

    Raises httpx.LocalProtocolError if a part of it could smuggle in another line or is not HTTP; header values
    never appear in the text.
    """
    method = request.method.encode("ascii", "replace")
    target = request.url.raw_path
    if not _TOKEN.fullmatch(method) or method == b"CONNECT":
        raise httpx.LocalProtocolError(f"method {request.method[:20]!r} is not supported")
    if not _PATH.fullmatch(target):
        raise httpx.LocalProtocolError("the URL's path has blanks or control characters in it")
    lines = [method + b" " + target + b" HTTP/1.1"]
    for name, value in request.headers.raw:
        if not _TOKEN.fullmatch(name):
            raise httpx.LocalProtocolError(f"header name {name[:40]!r} is not a valid one")
        if not _VALUE.fullmatch(value):
            shown = name.decode("ascii")
            raise httpx.LocalProtocolError(f"the value of header {shown!r} has control characters in it")
        lines.append(name + b": " + value)
    return b"\r\n".join(lines) + b"\r\n\r\n"


async def pieces(request: httpx.Request, head: bytes) -> AsyncGenerator[bytes, None]:
    """The whole request in pieces of at most about `PIECE` bytes, the first one beginning with `head`.

    Raises httpx.LocalProtocolError when the body is not as long as its `content-length` says.
    """
    chunked = "chunked" in request.headers.get("transfer-encoding", "").lower()
    announced = int(request.headers.get("content-length", "0"))
    count = 0
    pending = head
    async for chunk in _stream(request):
        for start in range(0, len(chunk), PIECE):
            data = bytes(memoryview(chunk)[start : start + PIECE])
            count += len(data)
            if not chunked and count > announced:
                raise _wrong_length(announced)
            yield pending + (b"%x\r\n%b\r\n" % (len(data), data) if chunked else data)
            pending = b""
    if not chunked and count != announced:
        raise _wrong_length(announced)
    pending += b"0\r\n\r\n" if chunked else b""
    if pending:
        yield pending


def _stream(request: httpx.Request) -> httpx.AsyncByteStream:
    if not isinstance(request.stream, httpx.AsyncByteStream):
        raise httpx.LocalProtocolError("the request's body can't be read asynchronously")
    return request.stream


def _wrong_length(announced: int) -> httpx.LocalProtocolError:
    return httpx.LocalProtocolError(f"the request's body is not {announced} bytes long as its header says")
