"""A simulated reverse proxy in front of the router: sound by itself, and the place of proxies' own faults."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpcore
import msgspec
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from pytest_pdserve.sim.control import control_route
from pytest_pdserve.sim.dispatch import BROKEN, CONNECT_S, Dispatcher, pieces
from pytest_pdserve.sim.frontdoor import passed_on
from pytest_pdserve.sim.loops import ClientLeft, ClosingStream, unless_disconnected
from pytest_pdserve.sim.plan import Plan, Role, Service

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

    from pytest_pdserve.sim.faults.base import Events

_METHODS = ["GET", "POST", "PUT", "DELETE"]
_DROPPED = frozenset({"host", "connection", "content-length", "transfer-encoding"})


class Proxy(Dispatcher):
    """Passes every request on to the router and its answer back, a piece at a time."""

    def __init__(self, plan: Plan, service: Service) -> None:
        super().__init__(plan, service)
        self._drains: set[asyncio.Task[None]] = set()

    def app(self) -> Starlette:
        """The ASGI application."""
        return Starlette(
            routes=[control_route(self._faults), Route("/{path:path}", self._pass, methods=_METHODS)]
        )

    async def _pass(self, request: Request) -> Response:
        raw = await request.body()
        strikes = self._faults.admit(self._known(request, _body(raw)))
        try:
            await unless_disconnected(request, strikes.before_answer())
            if self._faults.swallows_aborts():
                answer = await self._forward(request, raw)
            else:
                answer = await unless_disconnected(request, self._forward(request, raw))
        except ClientLeft:
            return Response(status_code=499)
        except httpcore.TimeoutException:
            return _html(504, "Gateway Time-out")
        except BROKEN:
            return _html(502, "Bad Gateway")
        source = self._detached(answer) if self._faults.swallows_aborts() else _closing(answer)
        return ClosingStream(strikes.events(source), answer.status, passed_on(answer.headers))

    async def _forward(self, request: Request, raw: bytes) -> httpcore.Response:
        (router,) = self._plan.of(Role.ROUTER)
        kept = {name: value for name, value in request.headers.items() if name not in _DROPPED}
        length = {"content-length": str(len(raw))} if raw or request.method != "GET" else {}
        query = f"?{request.url.query}" if request.url.query else ""
        timeouts = {"connect": CONNECT_S, "write": CONNECT_S}
        patience = self._faults.patience()
        if patience < float("inf"):
            timeouts["read"] = patience
        url = router.url + request.url.path + query
        return await self._call(request.method, url, {**kept, **length}, raw, timeouts)

    async def _detached(self, answer: httpcore.Response) -> Events:
        """The answer's pieces, read to its end whether or not the client is still there."""
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        drain = asyncio.create_task(_drain(answer, queue))
        self._drains.add(drain)
        drain.add_done_callback(self._drains.discard)
        while (piece := await queue.get()) is not None:
            yield piece


async def _drain(answer: httpcore.Response, queue: asyncio.Queue[bytes | None]) -> None:
    try:
        async for piece in _closing(answer):
            queue.put_nowait(piece)
    finally:
        queue.put_nowait(None)


async def _closing(answer: httpcore.Response) -> Events:
    try:
        async for piece in pieces(answer):
            yield piece
    finally:
        await answer.aclose()


def _html(status: int, phrase: str) -> Response:
    """An error as proxies make it: a page, not JSON."""
    title = f"{status} {phrase}"
    head = f"<html>\r\n<head><title>{title}</title></head>\r\n<body>\r\n"
    page = f"{head}<center><h1>{title}</h1></center>\r\n</body>\r\n</html>\r\n"
    return Response(page, status, media_type="text/html")


def _body(raw: bytes) -> Mapping[str, Any]:
    """A request's JSON object, for what faults may know of it; a proxy itself does not mind what it passes on."""
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except msgspec.DecodeError:
        return {}
