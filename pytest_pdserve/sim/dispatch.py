"""What routers of both engine families do alike: pick workers, call them, pass their streams on."""

from __future__ import annotations

import itertools
import math
import random
import string
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpcore
from starlette.exceptions import HTTPException
from starlette.responses import Response

from pytest_pdserve.sim.connection import Connection
from pytest_pdserve.sim.faults import Call, Switchboard
from pytest_pdserve.sim.frontdoor import dated, failure
from pytest_pdserve.sim.loops import ClosingStream, forever
from pytest_pdserve.sim.plan import Plan, Role, Service
from pytest_pdserve.sim.wellness import Wellness

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from contextlib import AsyncExitStack

    from starlette.applications import Starlette
    from starlette.requests import Request

    from pytest_pdserve.sim.faults.base import Events

CONNECT_S = 10.0
_GET_S = 5.0
BROKEN = (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException)
"""A worker that can't be reached, or whose answer breaks off."""


class Dispatcher:
    """A router's means: it picks workers, calls them, and knows what they are busy with."""

    def __init__(self, plan: Plan, service: Service) -> None:
        self._plan = plan
        self._faults = Switchboard(service.role, plan.seed, plan.time_scale)
        self._faults.set(plan.faults)
        self._dice = random.Random(f"router {plan.seed}")
        self._turn = itertools.count()
        self._load = {worker.name: 0 for worker in plan.services}
        self._workers_known = (*plan.of(Role.PREFILL), *plan.of(Role.DECODE))
        self._wellness = Wellness(self._workers_known, plan.time_scale)

    def _known(self, request: Request, body: Mapping[str, Any]) -> Call:
        connection = Connection.of(request)
        users = [
            message
            for message in body.get("messages", ())
            if isinstance(message, dict) and message.get("role") == "user"
        ]
        concurrency = sum(self._load[worker.name] for worker in self._plan.of(Role.DECODE)) + 1
        return Call(
            stream=bool(body.get("stream")),
            turn=max(1, len(users)),
            reused=connection.reused,
            idle=connection.idle,
            concurrency=concurrency,
            disconnect=connection.reset,
        )

    def _random_id(self) -> str:
        return "".join(self._dice.choices(string.ascii_letters + string.digits, k=24))

    def _choose(self) -> tuple[Service, Service]:
        """The least loaded worker of each role, turn by turn among equals so that every pair has its turn."""
        turn = next(self._turn)
        prefills, decodes = self._available(Role.PREFILL), self._available(Role.DECODE)
        if self._faults.hot_spot():
            return prefills[0], decodes[0]
        prefills = tuple(prefills[(turn + i) % len(prefills)] for i in range(len(prefills)))
        offset = turn + turn // math.lcm(len(prefills), len(decodes))
        decodes = tuple(decodes[(offset + i) % len(decodes)] for i in range(len(decodes)))
        return min(prefills, key=lambda s: self._load[s.name]), min(decodes, key=lambda s: self._load[s.name])

    def _available(self, role: Role) -> tuple[Service, ...]:
        """The workers of a role that may get requests. Raises Refusal when there is none."""
        found = tuple(filter(self._wellness.available, self._plan.of(role)))
        if not found:
            message = f"No available servers: No available {role} workers (all circuits open or unhealthy)"
            raise failure(503, "server_selection_failed", message)
        return found

    def _judge(self, workers: Sequence[Service], status: int) -> None:
        """Count what became of a dispatch for the breakers; a refusal counts only where a fault says so."""
        refusals = self._faults.refusals()
        if 400 <= status < 500 and refusals is not None:
            self._wellness.record(workers, failed=True, most=refusals)
        elif not 400 <= status < 500:
            self._wellness.record(workers, failed=status >= 500)

    async def _well(self, worker: Service) -> bool:
        """A health check."""
        try:
            return (await self._get(worker, "/health")).status == 200
        except BROKEN:
            return False

    @asynccontextmanager
    async def _checking(self, app: Starlette) -> AsyncIterator[None]:
        """The lifespan of a router: it checks its workers' health."""
        async with forever(self._wellness.check(self._workers_known, self._well)):
            yield

    def _leave(self, worker: Service) -> None:
        self._load[worker.name] -= 1

    async def _call(
        self, method: str, url: str, headers: Mapping[str, str], raw: bytes, timeouts: Mapping[str, float]
    ) -> httpcore.Response:
        """Call a worker on a connection of its own: httpcore's pool takes milliseconds a request at 100 at once."""
        address = url.removeprefix("http://").partition("/")[0]
        sent = [("host", address), ("connection", "close"), *headers.items()]
        request = httpcore.Request(method, url, headers=sent, content=raw, extensions={"timeout": timeouts})
        return await httpcore.AsyncHTTPConnection(request.url.origin).handle_async_request(request)

    async def _get(self, worker: Service, path: str) -> httpcore.Response:
        answer = await self._call("GET", worker.url + path, {}, b"", {"connect": _GET_S, "read": _GET_S})
        await answer.aread()
        return answer


class Passing(ClosingStream):
    """A worker's stream passed on; however it ends, both of its requests are closed."""

    def __init__(
        self, answer: httpcore.Response, headers: Mapping[str, str], cleanup: AsyncExitStack
    ) -> None:
        super().__init__(pieces(answer), answer.status, headers)
        self._cleanup = cleanup

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Send the stream, then clean up."""
        async with self._cleanup:
            await super().__call__(scope, receive, send)


async def pieces(answer: httpcore.Response) -> Events:
    """An answer's body as it comes."""
    async for piece in answer.aiter_stream():
        yield piece


async def nothing_there(request: Request, error: Exception) -> Response:
    """The real router's answer to unknown paths and methods: a bare status."""
    assert isinstance(error, HTTPException)
    return dated(Response(status_code=error.status_code))
