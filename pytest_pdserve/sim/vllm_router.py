"""A simulated vLLM router in prefill-decode mode, as vllm-router 0.1.17 behaves on the wire."""

from __future__ import annotations

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
from pytest_pdserve.sim.frontdoor import CORS, Refusal, dated, passed_on, text_response
from pytest_pdserve.sim.loops import ClientLeft, unless_disconnected
from pytest_pdserve.sim.plan import Role, Service

if TYPE_CHECKING:
    from collections.abc import Mapping

    import httpcore
    from starlette.requests import Request

    from pytest_pdserve.sim.faults import Strikes

_KEPT = ("authorization", "traceparent")
_REQUEST_S = 1800.0


class VllmRouter(Dispatcher):
    """Sends a request to a prefill first, and with what that answers to a decode, whose answer it passes on."""

    def app(self) -> Starlette:
        """The ASGI application."""
        return Starlette(
            lifespan=self._checking,
            exception_handlers={HTTPException: nothing_there},
            routes=[
                Route("/v1/chat/completions", self._completion, methods=["POST"]),
                Route("/v1/completions", self._completion, methods=["POST"]),
                *(Route(path, self._health) for path in ("/health", "/liveness", "/readiness")),
                Route("/v1/models", self._models),
                control_route(self._faults),
            ],
        )

    async def _completion(self, request: Request) -> Response:
        chat = request.url.path.endswith("chat/completions")
        try:
            body = _checked(await request.body(), "messages" if chat else "prompt")
            response = await unless_disconnected(request, self._routed(request, body))
        except Refusal as refusal:
            response = refusal.response
        except ClientLeft:
            return Response(status_code=499)
        own_id = f"{'chatcmpl' if chat else 'cmpl'}-{self._random_id()}"
        response.headers["x-request-id"] = request.headers.get("x-request-id") or own_id
        for name, value in CORS.items():
            response.headers.append(name, value)
        return response if "date" in response.headers else dated(response)

    async def _routed(self, request: Request, body: Mapping[str, Any]) -> Response:
        strikes = self._faults.admit(self._known(request, body))
        await strikes.before_answer()
        prefill, decode = pair = self._choose()
        name = f"___prefill_addr_{_address(prefill)}___decode_addr_{_address(decode)}_{uuid.uuid4().hex}"
        headers = {name: value for name in _KEPT if (value := request.headers.get(name))} | {
            "x-request-id": name
        }
        try:
            response = await self._dispatched(pair, request, body, headers, strikes)
        except Refusal as refusal:
            self._judge(pair, refusal.response.status_code)
            raise
        self._judge(pair, response.status_code)
        return response

    async def _dispatched(
        self,
        pair: tuple[Service, Service],
        request: Request,
        body: Mapping[str, Any],
        headers: Mapping[str, str],
        strikes: Strikes,
    ) -> Response:
        prefill, decode = pair
        async with AsyncExitStack() as stack:
            for worker in pair:
                self._load[worker.name] += 1
                stack.callback(self._leave, worker)
            first = await self._send(prefill, request.url.path, headers, _for_prefill(body))
            told = msgspec.json.decode(await first.aread())
            onward = {**body, "kv_transfer_params": told["kv_transfer_params"]}
            answer = await self._send(decode, request.url.path, headers, onward)
            stack.push_async_callback(answer.aclose)
            if not body.get("stream"):
                return Response(await answer.aread(), answer.status, passed_on(answer.headers))
            passing = Passing(answer, passed_on(answer.headers), stack.pop_all())
            passing.body_iterator = passing.source = strikes.events(passing.source)
            return passing

    async def _send(
        self, worker: Service, path: str, headers: Mapping[str, str], body: Mapping[str, Any]
    ) -> httpcore.Response:
        """Call a worker. Raises Refusal for an error status, passed on as it is, and for a dead worker."""
        raw = msgspec.json.encode(body)
        content = {"content-type": "application/json", "content-length": str(len(raw))}
        patience = self._plan.timeout(_REQUEST_S)
        timeouts = {"connect": CONNECT_S, "read": patience, "write": patience}
        try:
            answer = await self._call("POST", worker.url + path, {**headers, **content}, raw, timeouts)
            if answer.status < 400:
                return answer
            told = await answer.aread()
        except BROKEN as error:
            what = f"{worker.role.capitalize()} request failed: {error}"
            raise Refusal(text_response(what, 500)) from None
        raise Refusal(Response(told, answer.status, passed_on(answer.headers)))

    async def _health(self, request: Request) -> Response:
        return dated(text_response("OK"))

    async def _models(self, request: Request) -> Response:
        worker = self._plan.of(Role.PREFILL)[0]
        try:
            answer = await self._get(worker, "/v1/models")
        except BROKEN as error:
            return dated(text_response(f"Request failed: {error}", 500))
        return Response(answer.content, answer.status, passed_on(answer.headers))


def _address(worker: Service) -> str:
    return worker.url.removeprefix("http://")


def _for_prefill(body: Mapping[str, Any]) -> dict[str, Any]:
    """The request as prefill gets it: one token, unstreamed, its KV kept for another engine."""
    sent = {name: value for name, value in body.items() if name not in ("stream_options", "min_tokens")}
    nothing = dict.fromkeys(("remote_engine_id", "remote_block_ids", "remote_host", "remote_port"))
    sent |= {"max_tokens": 1, "stream": False}
    if "max_completion_tokens" in sent:
        sent["max_completion_tokens"] = 1
    sent["kv_transfer_params"] = {"do_remote_decode": True, "do_remote_prefill": False, **nothing}
    return sent


def _checked(raw: bytes, needed: str) -> dict[str, Any]:
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refusal(text_response(f"Failed to parse the request body as JSON: {error}", 400)) from None
    if not isinstance(body, dict) or needed not in body:
        what = f"missing field `{needed}` at line 1 column {len(raw)}"
        raise Refusal(text_response(f"Failed to deserialize the JSON body into the target type: {what}", 422))
    return body
