"""A simulated worker: the HTTP surface of one prefill or decode engine, as both engine families have it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import TYPE_CHECKING, ClassVar

from prometheus_client import CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pytest_pdserve.sim.ask import Ask, AskError, Surface, parse_ask, parse_body
from pytest_pdserve.sim.connection import Connection
from pytest_pdserve.sim.control import control_route
from pytest_pdserve.sim.engine import DecodeEngine, PrefillEngine
from pytest_pdserve.sim.faults import Call, Strikes, Switchboard
from pytest_pdserve.sim.loops import ClientLeft, ClosingStream, forever, merged, unless_disconnected
from pytest_pdserve.sim.model import Model
from pytest_pdserve.sim.output import Output, Whole
from pytest_pdserve.sim.plan import Role
from pytest_pdserve.sim.tally import Tally
from pytest_pdserve.sim.tokens import count_turns

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping

    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from pytest_pdserve.sim.faults.base import Outputs
    from pytest_pdserve.sim.plan import Plan, Service
    from pytest_pdserve.sim.speech import Speech


class Worker(ABC):
    """One prefill or decode worker."""

    stream_headers: ClassVar[Mapping[str, str]]

    def __init__(self, plan: Plan, service: Service, bootstrap: socket.socket | None, speech: Speech) -> None:
        self._plan = plan
        self._service = service
        self._bootstrap = bootstrap
        self._speech = speech
        self._faults = Switchboard(service.role, plan.seed, plan.time_scale)
        self._faults.set(plan.faults)
        self._tally = Tally()
        model = Model(plan.skill, plan.seed)
        self._prefill = PrefillEngine(plan, model, self._faults, self._tally)
        self._decode = DecodeEngine(plan, model, self._faults, self._tally)
        self._metrics = CollectorRegistry()
        self._open = 0
        """Requests for answers that are open: counted as they come, since an engine seats them only later."""

    @abstractmethod
    def _own_routes(self) -> list[Route]:
        """What only this engine family has."""

    @abstractmethod
    def _outputs(self, ask: Ask, strikes: Strikes) -> Outputs:
        """The steps of an answer."""

    def app(self) -> Starlette:
        """The ASGI application."""
        return Starlette(
            lifespan=self._lifespan,
            middleware=[Middleware(self._counting)],
            routes=[
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/v1/completions", self._completions, methods=["POST"]),
                Route("/health", self._health),
                Route("/v1/models", self._models),
                Route("/metrics", self._scrape),
                *self._own_routes(),
                control_route(self._faults),
            ],
        )

    def _counting(self, app: ASGIApp) -> ASGIApp:
        """The application, counting the requests for answers that are open."""

        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            counts = scope["type"] == "http" and scope["path"].endswith("/completions")
            self._open += counts
            try:
                await app(scope, receive, send)
            finally:
                self._open -= counts

        return counted

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            if self._bootstrap is not None:
                await stack.enter_async_context(self._prefill.depot.listening(self._bootstrap))
            for engine in (self._prefill, self._decode):
                await stack.enter_async_context(forever(engine.run()))
            yield

    async def _chat(self, request: Request) -> Response:
        return await self._answer(request, Surface.CHAT)

    async def _completions(self, request: Request) -> Response:
        return await self._answer(request, Surface.COMPLETIONS)

    async def _answer(self, request: Request, surface: Surface) -> Response:
        strikes = Strikes((), Call())
        try:
            ask = parse_ask(parse_body(await request.body()), surface, self._plan.model)
            self._speech.check(ask, self._plan)
            strikes = self._faults.admit(self._call(request, ask))
            if ask.stream:
                await unless_disconnected(request, strikes.before_answer())
                events = strikes.events(self._stream(ask, strikes, request.headers.get("x-request-id")))
                return ClosingStream(events, 200, self.stream_headers)
            return await unless_disconnected(
                request, self._whole(ask, strikes, request.headers.get("x-request-id"))
            )
        except AskError as error:
            status, body = self._speech.error_body(error)
            return JSONResponse(body, status)
        except ClientLeft:
            strikes.abandoned()
            return Response(status_code=499)

    def _call(self, request: Request, ask: Ask) -> Call:
        connection = Connection.of(request)
        return Call(
            stream=ask.stream,
            turn=count_turns(ask.prompt),
            reused=connection.reused,
            pair=self._pair(ask),
            concurrency=self._open,
            prompt_tokens=len(ask.prompt),
            disconnect=connection.reset,
        )

    def _pair(self, ask: Ask) -> tuple[int, int] | None:
        """Which prefill and which decode a request brings together, as decode sees it."""
        ports = [each.bootstrap_port for each in self._plan.of(Role.PREFILL)]
        decodes = self._plan.of(Role.DECODE)
        if ask.source is None or ask.source.port not in ports or self._service not in decodes:
            return None
        return ports.index(ask.source.port), decodes.index(self._service)

    async def _stream(
        self, ask: Ask, strikes: Strikes, request_id: str | None
    ) -> AsyncGenerator[bytes, None]:
        writer = self._speech.writer(ask, request_id)
        opening = writer.opening()
        whole = False
        try:
            async with aclosing(strikes.outputs(self._all_outputs(ask, strikes))) as outputs:
                async for output in outputs:
                    for event in opening + writer.chunk(output):
                        yield event
                    opening = []
            whole = True
        except AskError as error:
            whole = True
            for event in self._speech.error_events(error, opening):
                yield event
        finally:
            if not whole:
                strikes.abandoned()

    async def _whole(self, ask: Ask, strikes: Strikes, request_id: str | None) -> Response:
        await strikes.before_answer()
        steps: dict[int, list[Output]] = {}
        async with aclosing(strikes.outputs(self._all_outputs(ask, strikes))) as outputs:
            async for output in outputs:
                steps.setdefault(output.index, []).append(output)
        answers = [_joined(steps[index]) for index in sorted(steps)]
        return JSONResponse(self._speech.writer(ask, request_id).whole(answers, None))

    def _all_outputs(self, ask: Ask, strikes: Strikes) -> Outputs:
        """The steps of all answers that were asked for, as they come."""
        if ask.n == 1:
            return self._outputs(ask, strikes)
        return merged([self._outputs(ask.choice(index), strikes) for index in range(ask.n)])

    async def _health(self, request: Request) -> Response:
        return Response(status_code=self._faults.health())

    async def _models(self, request: Request) -> Response:
        return JSONResponse(self._speech.models(self._plan))

    async def _scrape(self, request: Request) -> Response:
        return Response(generate_latest(self._metrics), media_type="text/plain; version=0.0.4; charset=utf-8")


def _joined(steps: list[Output]) -> Whole:
    text = "".join(step.text for step in steps)
    return Whole(text, tuple(token for step in steps for token in step.tokens), steps[-1])
