"""A simulated SGLang router in prefill-decode mode, as sglang-router 0.3.2 behaves on the wire."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route

from pytest_pdserve.sim.control import control_route
from pytest_pdserve.sim.dispatch import BROKEN, CONNECT_S, Dispatcher, Passing, nothing_there
from pytest_pdserve.sim.frontdoor import (
    CORS,
    Refusal,
    checked,
    dated,
    failure,
    json_response,
    passed_on,
    refused,
    text_response,
    unreachable,
)
from pytest_pdserve.sim.loops import ClientLeft, unless_disconnected
from pytest_pdserve.sim.plan import Plan, Role, Service

if TYPE_CHECKING:
    from collections.abc import Mapping

    import httpcore
    from starlette.requests import Request


_KEPT = ("authorization", "x-request-id", "traceparent")
_RETRIED = frozenset({408, 429, 500, 502, 503, 504})
_BACKOFF_S = (0.05, 0.075, 0.11, 0.17)
"""The pauses between five attempts: 0.4 s in all, as measured."""
_REQUEST_S = 1800.0
"""sglang-router's default request timeout."""


class SglangRouter(Dispatcher):
    """Sends each request to a prefill and a decode worker at once and passes decode's answer on."""

    def __init__(self, plan: Plan, service: Service) -> None:
        super().__init__(plan, service)
        self._ids = {worker.name: str(uuid.uuid4()) for worker in plan.services}

    def app(self) -> Starlette:
        """The ASGI application."""
        return Starlette(
            lifespan=self._checking,
            exception_handlers={HTTPException: nothing_there},
            routes=[
                Route("/v1/chat/completions", self._completion, methods=["POST"]),
                Route("/v1/completions", self._completion, methods=["POST"]),
                Route("/health", self._health),
                Route("/liveness", self._health),
                Route("/readiness", self._readiness),
                Route("/health_generate", self._health_generate),
                Route("/workers", self._workers),
                Route("/get_loads", self._get_loads),
                Route("/v1/models", self._models),
                Route("/get_server_info", self._server_info),
                Route("/get_model_info", self._model_info),
                control_route(self._faults),
            ],
        )

    async def _completion(self, request: Request) -> Response:
        chat = request.url.path.endswith("chat/completions")
        try:
            body = checked(await request.body(), request.headers.get("content-type", ""), chat=chat)
            response = await unless_disconnected(request, self._routed(request, body))
        except Refusal as refusal:
            response = refusal.response
        except ClientLeft:
            return Response(status_code=499)
        own_id = f"{'chatcmpl' if chat else 'cmpl'}-{self._random_id()}"
        response.headers["x-request-id"] = request.headers.get("x-request-id") or own_id
        response.headers.update(CORS)
        return response if "date" in response.headers else dated(response)

    async def _routed(self, request: Request, body: Mapping[str, Any]) -> Response:
        strikes = self._faults.admit(self._known(request, body))
        await strikes.before_answer()
        response = await self._attempts(request, body)
        if isinstance(response, Passing):
            response.body_iterator = response.source = strikes.events(response.source)
        return response

    async def _attempts(self, request: Request, body: Mapping[str, Any]) -> Response:
        """Dispatch until an attempt succeeds or the last one fails. Raises Refusal."""
        for pause in _BACKOFF_S:
            try:
                return await self._attempt(request, body)
            except Refusal as refusal:
                if refusal.response.status_code not in _RETRIED:
                    raise
            await asyncio.sleep(pause * self._plan.time_scale)
        return await self._attempt(request, body)

    async def _attempt(self, request: Request, body: Mapping[str, Any]) -> Response:
        """One dispatch to a pair of workers, counted for their breakers. Raises Refusal."""
        pair = self._choose()
        try:
            response = await self._dispatched(pair, request, body)
        except Refusal as refusal:
            self._judge(pair, refusal.response.status_code)
            raise
        self._judge(pair, response.status_code)
        return response

    async def _dispatched(
        self, pair: tuple[Service, Service], request: Request, body: Mapping[str, Any]
    ) -> Response:
        prefill, decode = pair
        raw = msgspec.json.encode({**body, **self._rooms(prefill, body.get("n"))})
        stream = bool(body.get("stream"))
        headers = {name: value for name in _KEPT if (value := request.headers.get(name))}
        async with AsyncExitStack() as stack:
            for worker in (prefill, decode):
                self._load[worker.name] += 1
                stack.callback(self._leave, worker)
            legs = [
                asyncio.create_task(self._prefill_leg(prefill, request.url.path, headers, raw, stream)),
                asyncio.create_task(self._send(decode, request.url.path, headers, raw, stream)),
            ]
            stack.push_async_callback(_settle, legs)
            # as the real router does: when one leg has failed, the other is still waited for
            await asyncio.wait(legs)
            for leg in reversed(legs):  # when both fail, decode's error is the one that is told
                if (error := leg.exception()) is not None:
                    raise error
            answer = legs[1].result()
            assert answer is not None
            kept = passed_on(answer.headers)
            if not stream:
                return Response(await answer.aread(), answer.status, kept)
            return Passing(answer, kept, stack.pop_all())

    def _rooms(self, prefill: Service, n: Any) -> dict[str, Any]:
        """Where prefill and decode meet: one room, or a list of them where several answers are asked for."""
        count = n if isinstance(n, int) and n > 1 else 1
        columns: dict[str, list[Any]] = {
            "bootstrap_host": ["127.0.0.1"] * count,
            "bootstrap_port": [prefill.bootstrap_port] * count,
            "bootstrap_room": [self._dice.getrandbits(63) for _ in range(count)],
        }
        return columns if count > 1 else {name: column[0] for name, column in columns.items()}

    async def _prefill_leg(
        self, worker: Service, path: str, headers: Mapping[str, str], raw: bytes, stream: bool
    ) -> None:
        """Wait for prefill's whole answer; nobody needs its text."""
        answer = await self._send(worker, path, headers, raw, stream)
        try:
            await answer.aread()
        except BROKEN:
            raise unreachable(worker, path) from None

    async def _send(
        self, worker: Service, path: str, headers: Mapping[str, str], raw: bytes, stream: bool
    ) -> httpcore.Response:
        content = {"content-type": "application/json", "content-length": str(len(raw))}
        patience = self._plan.timeout(_REQUEST_S)
        timeouts = {"connect": CONNECT_S, "read": patience, "write": patience}
        try:
            answer = await self._call("POST", worker.url + path, {**headers, **content}, raw, timeouts)
            if answer.status < 400:
                return answer
            told = await answer.aread()
        except BROKEN:
            raise unreachable(worker, path) from None
        raise refused(worker, answer.status, answer.headers, told, stream=stream)

    async def _health(self, request: Request) -> Response:
        return dated(text_response("OK"))

    async def _health_generate(self, request: Request) -> Response:
        return dated(text_response("At least one router has healthy workers"))

    async def _readiness(self, request: Request) -> Response:
        well = list(filter(self._wellness.healthy, self._workers_known))
        if not all(any(worker.role is role for worker in well) for role in (Role.PREFILL, Role.DECODE)):
            told = {"status": "not ready", "reason": "insufficient healthy workers"}
            return dated(json_response(told, 503))
        counts = {"healthy_workers": len(well), "total_workers": len(self._workers_known)}
        return dated(json_response({"status": "ready", **counts}))

    async def _workers(self, request: Request) -> Response:
        prefills, decodes = self._plan.of(Role.PREFILL), self._plan.of(Role.DECODE)
        body = {
            "workers": [self._card(worker) for worker in (*prefills, *decodes)],
            "total": len(prefills) + len(decodes),
            "stats": {"prefill_count": len(prefills), "decode_count": len(decodes), "regular_count": 0},
        }
        return dated(json_response(body))

    def _card(self, worker: Service) -> dict[str, Any]:
        port = {} if worker.bootstrap_port is None else {"bootstrap_port": worker.bootstrap_port}
        return {
            "id": self._ids[worker.name],
            "url": worker.url,
            "model_id": self._plan.model,
            "priority": 50,
            "cost": 1.0,
            "worker_type": str(worker.role),
            "is_healthy": self._wellness.healthy(worker),
            "load": self._load[worker.name],
            "connection_mode": "HTTP",
            **port,
            "metadata": {
                "dp_size": "1",
                "load_balance_method": "round_robin",
                "model_path": f"/models/{self._plan.model}",
                "served_model_name": self._plan.model,
                "model_type": "llama",
                "tp_size": "1",
                "disaggregation_mode": str(worker.role),
                "architectures": '["LlamaForCausalLM"]',
            },
            "disable_health_check": False,
        }

    async def _get_loads(self, request: Request) -> Response:
        workers = (*self._plan.of(Role.PREFILL), *self._plan.of(Role.DECODE))
        loads = [{"worker": worker.url, "load": await self._one_load(worker)} for worker in workers]
        return dated(json_response({"workers": loads}))

    async def _one_load(self, worker: Service) -> int:
        try:
            answer = await self._get(worker, "/get_load")
        except BROKEN:
            return -1
        return sum(rank["num_reqs"] for rank in msgspec.json.decode(answer.content))

    async def _models(self, request: Request) -> Response:
        card = {"id": self._plan.model, "object": "model", "owned_by": "local"}
        body = msgspec.json.encode({"object": "list", "data": [card]})
        return dated(text_response(body))

    async def _server_info(self, request: Request) -> Response:
        count = len(self._plan.of(Role.PREFILL)) + len(self._plan.of(Role.DECODE))
        body = msgspec.json.encode({"router_manager": True, "routers_count": 1, "workers_count": count})
        return dated(text_response(body))

    async def _model_info(self, request: Request) -> Response:
        worker = self._plan.of(Role.PREFILL)[0]
        try:
            answer = await self._get(worker, "/get_model_info")
        except BROKEN:
            message = f"Failed to proxy request: error sending request for url ({worker.url}/get_model_info)"
            return dated(failure(500, "proxy_request_failed", message).response)
        return dated(Response(answer.content, answer.status, media_type="application/json; charset=utf-8"))


async def _settle(legs: list[asyncio.Task[Any]]) -> None:
    """Cancel what still runs of a dispatch and close answers that nobody took."""
    for leg in legs:
        leg.cancel()
    await asyncio.wait(legs, timeout=5.0)
    for leg in legs:
        if leg.done() and not leg.cancelled() and leg.exception() is None and leg.result() is not None:
            await leg.result().aclose()
