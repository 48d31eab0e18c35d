"""The clients that are compared. Each reads all streams of a round and gives the delay of every event.

All of them do the same work: split the body into events, stamp each when it has arrived, and read the server's
stamp out of its text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final, cast

import aiohttp
import httptools
import httpx

from bench.plan import Plan, sent_at
from pytest_pdserve.wire import ConnectionLimits, Outcome, Transport, exchange, read_events

ROUND_BOUND: Final = 120.0
"""Seconds after which a round is given up."""

Client = Callable[[int, Plan], Awaitable[list[float]]]


class _BareStream(asyncio.Protocol):
    """The least that reads a stream: a protocol, a parser, and events split as they come."""

    def __init__(self, request: bytes, done: asyncio.Future[None]) -> None:
        self.delays: list[float] = []
        self._request = request
        self._done = done
        self._pending = b""
        self._at = 0.0
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._at = monotonic()
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        *events, self._pending = (self._pending + body).split(b"\n\n")
        for event in events:
            self.delays.append(self._at - sent_at(event[6:]))

    def on_message_complete(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._done.set_result(None)


async def bare(port: int, plan: Plan) -> list[float]:
    """The bare asyncio protocol."""
    loop = asyncio.get_running_loop()
    request = f"GET {plan.path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()

    async def one() -> list[float]:
        done = loop.create_future()
        _, stream = await loop.create_connection(lambda: _BareStream(request, done), "127.0.0.1", port)
        await done
        return stream.delays

    return _joined(await asyncio.gather(*(one() for _ in range(plan.streams))))


async def ours(port: int, plan: Plan) -> list[float]:
    """httpx over our transport, with `exchange` and `read_events`."""
    limits = ConnectionLimits(connections=plan.streams)

    async with httpx.AsyncClient(transport=Transport(limits=limits)) as client:

        async def one() -> list[float]:
            request = client.build_request("GET", f"http://127.0.0.1:{port}{plan.path}")
            answer = await exchange(client, request, deadline=ROUND_BOUND)
            if answer.outcome is not Outcome.COMPLETED:
                raise RuntimeError(answer.reason)
            return [event.at - sent_at(event.data.encode()) for event in read_events(answer.body).events]

        return _joined(await asyncio.gather(*(one() for _ in range(plan.streams))))


async def stock_httpx(port: int, plan: Plan) -> list[float]:
    """httpx as it comes."""
    limits = httpx.Limits(max_connections=plan.streams)

    async with httpx.AsyncClient(limits=limits, timeout=ROUND_BOUND, trust_env=False) as client:

        async def one() -> list[float]:
            delays = []
            pending = b""
            async with client.stream("GET", f"http://127.0.0.1:{port}{plan.path}") as response:
                async for data in response.aiter_bytes():
                    at = monotonic()
                    *events, pending = (pending + data).split(b"\n\n")
                    delays += [at - sent_at(event[6:]) for event in events]
            return delays

        return _joined(await asyncio.gather(*(one() for _ in range(plan.streams))))


async def with_aiohttp(port: int, plan: Plan) -> list[float]:
    """The aiohttp library."""
    connector = aiohttp.TCPConnector(limit=plan.streams)
    bound = aiohttp.ClientTimeout(total=ROUND_BOUND)

    async with aiohttp.ClientSession(connector=connector, timeout=bound) as session:

        async def one() -> list[float]:
            delays = []
            pending = b""
            async with session.get(f"http://127.0.0.1:{port}{plan.path}") as response:
                async for data in response.content.iter_any():
                    at = monotonic()
                    *events, pending = (pending + data).split(b"\n\n")
                    delays += [at - sent_at(event[6:]) for event in events]
            return delays

        return _joined(await asyncio.gather(*(one() for _ in range(plan.streams))))


def _joined(parts: list[list[float]]) -> list[float]:
    return [delay for part in parts for delay in part]


CLIENTS: Final[dict[str, Client]] = {
    "bare protocol": bare,
    "ours": ours,
    "aiohttp": with_aiohttp,
    "stock httpx": stock_httpx,
}
