"""A simulated SGLang worker: the HTTP surface of one prefill or decode engine."""

from __future__ import annotations

from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pytest_pdserve.sim import sglang
from pytest_pdserve.sim.ask import Ask, AskError, Surface, parse_ask, parse_body
from pytest_pdserve.sim.connection import Connection
from pytest_pdserve.sim.control import control_route
from pytest_pdserve.sim.engine import DecodeEngine, PrefillEngine
from pytest_pdserve.sim.faults import Call, Strikes, Switchboard
from pytest_pdserve.sim.loops import ClientLeft, ClosingStream, forever, unless_disconnected
from pytest_pdserve.sim.metrics import SglangCollector, queue_depths
from pytest_pdserve.sim.model import Model
from pytest_pdserve.sim.plan import Plan, Role, Service
from pytest_pdserve.sim.tally import Stage
from pytest_pdserve.sim.tokens import count_turns

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncGenerator, AsyncIterator

    from starlette.requests import Request

    from pytest_pdserve.sim.faults.base import Outputs


class Worker:
    """One prefill or decode worker."""

    def __init__(self, plan: Plan, service: Service, bootstrap: socket.socket | None) -> None:
        self._plan = plan
        self._service = service
        self._bootstrap = bootstrap
        self._faults = Switchboard(service.role, plan.seed, plan.time_scale)
        self._faults.set(plan.faults)
        model = Model(plan.skill, plan.seed)
        self._prefill = PrefillEngine(plan, model, self._faults) if service.role is Role.PREFILL else None
        self._decode = DecodeEngine(plan, model, self._faults) if service.role is Role.DECODE else None
        self._engine: PrefillEngine | DecodeEngine = self._prefill or self._decode  # type: ignore[assignment]
        self._metrics = CollectorRegistry()
        self._metrics.register(SglangCollector(plan, service.role, self._engine.tally))

    def app(self) -> Starlette:
        """The ASGI application."""
        return Starlette(
            lifespan=self._lifespan,
            routes=[
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/v1/completions", self._completions, methods=["POST"]),
                *(Route(path, self._health) for path in ("/health", "/health_generate")),
                Route("/v1/models", self._models),
                *(Route(path, self._server_info) for path in ("/server_info", "/get_server_info")),
                *(Route(path, self._model_info) for path in ("/model_info", "/get_model_info")),
                Route("/v1/loads", self._loads),
                Route("/get_load", self._old_load),
                Route("/metrics", self._scrape),
                control_route(self._faults),
            ],
        )

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            if self._prefill is not None and self._bootstrap is not None:
                await stack.enter_async_context(self._prefill.depot.listening(self._bootstrap))
            await stack.enter_async_context(forever(self._engine.run()))
            yield

    async def _chat(self, request: Request) -> Response:
        return await self._answer(request, Surface.CHAT)

    async def _completions(self, request: Request) -> Response:
        return await self._answer(request, Surface.COMPLETIONS)

    async def _answer(self, request: Request, surface: Surface) -> Response:
        try:
            ask = parse_ask(parse_body(await request.body()), surface, self._plan.model)
            self._engine.check(ask)
            strikes = self._faults.admit(self._call(request, ask))
            if ask.stream:
                await unless_disconnected(request, strikes.before_answer())
                headers = {"content-type": "text/event-stream"}
                return ClosingStream(strikes.events(self._stream(ask, strikes)), 200, headers)
            return await unless_disconnected(request, self._whole(ask, strikes))
        except AskError as error:
            status, body = sglang.error_body(error)
            return JSONResponse(body, status)
        except ClientLeft:
            return Response(status_code=499)

    def _call(self, request: Request, ask: Ask) -> Call:
        connection = Connection.of(request)
        return Call(
            stream=ask.stream,
            turn=count_turns(ask.prompt),
            reused=connection.reused,
            concurrency=sum(self._engine.tally.stages.values()) + 1,
            prompt_tokens=len(ask.prompt),
            disconnect=connection.reset,
        )

    async def _outputs(self, ask: Ask, strikes: Strikes) -> Outputs:
        if self._prefill is not None:
            yield await self._prefill.prefill(ask, strikes)
            return
        assert self._decode is not None
        async with aclosing(self._decode.decode(ask, strikes)) as outputs:
            async for output in outputs:
                yield output

    async def _stream(self, ask: Ask, strikes: Strikes) -> AsyncGenerator[bytes, None]:
        writer = sglang.Writer(ask)
        opening = writer.opening()
        try:
            async with aclosing(strikes.outputs(self._outputs(ask, strikes))) as outputs:
                async for output in outputs:
                    for event in opening + writer.chunk(output):
                        yield event
                    opening = []
        except AskError as error:
            yield sglang.error_event(error)
            yield sglang.DONE

    async def _whole(self, ask: Ask, strikes: Strikes) -> Response:
        await strikes.before_answer()
        text = []
        async with aclosing(strikes.outputs(self._outputs(ask, strikes))) as outputs:
            async for output in outputs:
                text.append(output.text)
        return JSONResponse(sglang.Writer(ask).whole("".join(text), output))

    async def _health(self, request: Request) -> Response:
        return Response(status_code=self._faults.health())

    async def _models(self, request: Request) -> Response:
        return JSONResponse(sglang.models(self._plan))

    async def _server_info(self, request: Request) -> Response:
        return JSONResponse(sglang.server_info(self._plan, self._service.role))

    async def _model_info(self, request: Request) -> Response:
        return JSONResponse(sglang.model_info(self._plan))

    async def _loads(self, request: Request) -> Response:
        include = set(request.query_params.get("include", "all").split(","))
        tally, depths = self._engine.tally, queue_depths(self._engine.tally, self._service.role)
        load: dict[str, Any] = {
            "dp_rank": 0,
            "num_running_reqs": depths.pop("num_running_reqs"),
            "num_waiting_reqs": depths["num_queue_reqs"],
            "num_used_tokens": tally.kv_tokens,
            "max_total_num_tokens": self._plan.kv_tokens,
            "token_usage": tally.kv_tokens / self._plan.kv_tokens,
        }
        waiting = depths.pop("num_queue_reqs")
        if include & {"all", "disagg"}:
            queues = {
                name.removeprefix("num_").replace("_queue", ""): depth for name, depth in depths.items()
            }
            load["disaggregation"] = {"mode": str(self._service.role), **queues}
        if include & {"all", "queues"}:
            load["queues"] = {"waiting": waiting, "grammar": 0, "paused": 0, "retracted": 0}
        stamp = datetime.now(UTC).isoformat()
        return JSONResponse({"timestamp": stamp, "version": sglang.VERSION, "loads": [load]})

    async def _old_load(self, request: Request) -> Response:
        tally = self._engine.tally
        waiting = tally.stages[Stage.WAITING]
        requests = sum(tally.stages.values())
        load = {
            "dp_rank": 0,
            "num_reqs": requests,
            "num_waiting_reqs": waiting,
            "num_tokens": tally.kv_tokens,
        }
        return JSONResponse([load])

    async def _scrape(self, request: Request) -> Response:
        return Response(generate_latest(self._metrics), media_type="text/plain; version=0.0.4; charset=utf-8")
