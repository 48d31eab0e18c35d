"""The httpx transport: HTTP/1.1 with every step stamped."""

from __future__ import annotations

import asyncio
from functools import cache
from time import monotonic
from typing import TYPE_CHECKING, Final, Literal

import httpx

from pytest_pdserve.wire.connect import connect
from pytest_pdserve.wire.connection import Connection, Origin
from pytest_pdserve.wire.pool import ConnectionLimits, Pool
from pytest_pdserve.wire.request import head_bytes
from pytest_pdserve.wire.resolve import Resolver
from pytest_pdserve.wire.timeline import Timeline
from pytest_pdserve.wire.tls import tls_context

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    from pytest_pdserve.wire.incoming import Incoming

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_DEFAULT_LIMITS: Final = ConnectionLimits()


class Transport(httpx.AsyncBaseTransport):
    """HTTP/1.1 for `httpx.AsyncClient(transport=Transport())`, with every step stamped.

    Read from `request.extensions`, all optional:

    - `timeline`: a `Timeline` to fill in as the exchange goes; so whoever gives up on it still has it.
    - `connection`: `"reuse"` (default: an idle connection if there is one, else a new one) or `"fresh"`.
    - `timeout`: httpx's dict of `connect` (name, TCP and TLS together), `read`, `write` and `pool` seconds.

    Put into `response.extensions`: `timeline`, `http_version`, `reason_phrase` and `incoming` (the `Incoming` that
    httpx hides behind `response.stream`, for `collect`).

    Raises httpx's exceptions with a text in words; never sends anything twice and follows nothing.
    A transport belongs to the event loop of its first request.
    """

    def __init__(
        self, *, ssl_context: ssl.SSLContext | None = None, limits: ConnectionLimits = _DEFAULT_LIMITS
    ) -> None:
        self._ssl_context = ssl_context
        self._pool = Pool(limits)
        self._resolver = Resolver()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    @property
    def open_connections(self) -> int:
        """How many connections are open now."""
        return self._pool.open

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send one request and return once its final response's head is there."""
        self._check_usable()
        origin = _origin(request.url)
        head_bytes(request)  # complains before a connection is made
        timeline = request.extensions.get("timeline") or Timeline(started=monotonic())
        timeouts: Mapping[str, float | None] = request.extensions.get("timeout") or {}
        fresh = _choice(request.extensions.get("connection", "reuse")) == "fresh"
        connection = await self._connection(origin, fresh, timeline, timeouts)
        incoming = await connection.request(request, timeline, timeouts)
        return _response(incoming, timeline)

    async def aclose(self) -> None:
        """Close all connections; exchanges under way end with `httpx.ReadError`."""
        self._closed = True
        await self._pool.aclose()

    async def _connection(
        self, origin: Origin, fresh: bool, timeline: Timeline, timeouts: Mapping[str, float | None]
    ) -> Connection:
        pool = self._pool
        await pool.lease(timeouts.get("pool"))
        try:
            timeline.admitted = monotonic()
            idle = None if fresh else pool.take(origin)
            if idle is not None:
                timeline.tls = origin.scheme == "https"
                return idle
            return await self._opened(origin, timeline, timeouts.get("connect"))
        except BaseException:
            pool.release()
            raise

    async def _opened(self, origin: Origin, timeline: Timeline, timeout: float | None) -> Connection:
        pool = self._pool
        pool.make_room()
        connection = await connect(
            origin,
            make=lambda: Connection(origin, pool),
            resolver=self._resolver,
            ssl_context=self._tls() if origin.scheme == "https" else None,
            timeline=timeline,
            timeout=timeout,
        )
        if self._closed:
            connection.abort()
            raise httpx.ConnectError("the client was closed")
        if connection.connected:
            pool.add(connection)
        return connection

    def _tls(self) -> ssl.SSLContext:
        return _default_context() if self._ssl_context is None else self._ssl_context

    def _check_usable(self) -> None:
        if self._closed:
            raise RuntimeError("this transport is closed")
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise RuntimeError("this transport belongs to another event loop")


@cache
def _default_context() -> ssl.SSLContext:
    """One for the process: loading the system's certificates takes long enough to delay other exchanges."""
    return tls_context(ca=None, certificate=None, key=None)


def _origin(url: httpx.URL) -> Origin:
    if url.scheme not in _DEFAULT_PORTS:
        raise httpx.UnsupportedProtocol(f"URL scheme {url.scheme!r} is not supported, only http and https")
    host = url.raw_host.decode("ascii")
    if not host:
        raise httpx.UnsupportedProtocol("the URL has no host")
    return Origin(url.scheme, host, url.port or _DEFAULT_PORTS[url.scheme])


def _choice(connection: object) -> Literal["fresh", "reuse"]:
    if connection == "fresh":
        return "fresh"
    if connection == "reuse":
        return "reuse"
    raise ValueError(f"the extension 'connection' must be 'fresh' or 'reuse', not {connection!r}")


def _response(incoming: Incoming, timeline: Timeline) -> httpx.Response:
    head = incoming.reader.head
    assert head is not None, "a response is handed out when its head is there"
    return httpx.Response(
        head.status,
        headers=list(head.fields),
        stream=incoming,
        extensions={
            "http_version": f"HTTP/{head.version}".encode(),
            "reason_phrase": head.phrase,
            "timeline": timeline,
            "incoming": incoming,
        },
    )
