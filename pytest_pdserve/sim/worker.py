"""A simulated SGLang worker: the HTTP surface of one prefill or decode engine."""

from __future__ import annotations

from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from pytest_pdserve.sim import sglang
from pytest_pdserve.sim.ask import Ask, AskError, Surface, parse_ask, parse_body
from pytest_pdserve.sim.control import control_route
from pytest_pdserve.sim.engine import DecodeEngine, Output, PrefillEngine, Stage
from pytest_pdserve.sim.faults import Switchboard
from pytest_pdserve.sim.loops import forever, unless_disconnected
from pytest_pdserve.sim.metrics import SglangCollector, queue_depths
from pytest_pdserve.sim.model import Model
from pytest_pdserve.sim.plan import Plan, Role, Service

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncGenerator, AsyncIterator

    from starlette.requests import Request


class Worker:
    """One prefill or decode worker."""

    def __init__(self, plan: Plan, service: Service, bootstrap: socket.socket | None) -> None:
        self._plan = plan
        self._service = service
        self._bootstrap = bootstrap
        self._faults = Switchboard(service.role, plan.seed, plan.time_scale)
        self._faults.set(plan.faults)
        model = Model(plan.skill, plan.seed)
        self._prefill = PrefillEngine(plan, model) if service.role is Role.PREFILL else None
        self._decode = DecodeEngine(plan, model) if service.role is Role.DECODE else None
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
                *(Route(path, _ok) for path in ("/health", "/health_generate")),
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
            if ask.stream:
                return StreamingResponse(self._stream(ask), headers={"content-type": "text/event-stream"})
            return await unless_disconnected(request, self._whole(ask))
        except AskError as error:
            status, body = sglang.error_body(error)
            return JSONResponse(body, status)

    async def _outputs(self, ask: Ask) -> AsyncGenerator[Output, None]:
        if self._prefill is not None:
            yield await self._prefill.prefill(ask)
            return
        assert self._decode is not None
        async with aclosing(self._decode.decode(ask, self._faults.admit())) as outputs:
            async for output in outputs:
                yield output

    async def _stream(self, ask: Ask) -> AsyncGenerator[bytes, None]:
        writer = sglang.Writer(ask)
        opening = writer.opening()
        try:
            async with aclosing(self._outputs(ask)) as outputs:
                async for output in outputs:
                    events, opening = opening + writer.chunk(output), b""
                    if events:
                        yield events
        except AskError as error:
            yield sglang.error_event(error) + sglang.DONE

    async def _whole(self, ask: Ask) -> Response:
        text = []
        async with aclosing(self._outputs(ask)) as outputs:
            async for output in outputs:
                text.append(output.text)
        return JSONResponse(sglang.Writer(ask).whole("".join(text), output))

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


async def _ok(request: Request) -> Response:
    return Response(status_code=200)
