"""A simulated SGLang router in prefill-decode mode, as sglang-router 0.3.2 behaves on the wire."""

from __future__ import annotations

import asyncio
import itertools
import random
import string
import uuid
from contextlib import AsyncExitStack, asynccontextmanager
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import httpcore
import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from pytest_pdserve.sim.control import control_route
from pytest_pdserve.sim.faults import Switchboard
from pytest_pdserve.sim.loops import unless_disconnected
from pytest_pdserve.sim.plan import Plan, Role, Service

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from starlette.requests import Request

_TEXT = "text/plain; charset=utf-8"
_KEPT = ("authorization", "x-request-id", "traceparent")
_HOP_HEADERS = frozenset({"transfer-encoding", "connection", "keep-alive"})
_RETRIED = frozenset({408, 429, 500, 502, 503, 504})
_ATTEMPTS = 5
_BACKOFF_S = (0.05, 0.075, 0.11, 0.17)
_CONNECT_S = 10.0
_GET_S = 5.0
_BROKEN = (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException)
_REQUEST_S = 1800.0
"""sglang-router's default request timeout."""
_CORS = {
    "vary": "origin, access-control-request-method, access-control-request-headers",
    "access-control-allow-origin": "*",
    "access-control-expose-headers": "*",
}


class UpstreamError(Exception):
    """A worker that gave no usable answer: what the client is to be told."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class Router:
    """Sends each request to a prefill and a decode worker at once and passes decode's answer on."""

    def __init__(self, plan: Plan, service: Service) -> None:
        self._plan = plan
        self._faults = Switchboard(service.role, plan.seed, plan.time_scale)
        self._faults.set(plan.faults)
        self._dice = random.Random(f"router {plan.seed}")
        self._turn = itertools.count()
        self._ids = {worker.name: str(uuid.uuid4()) for worker in plan.services}
        self._load = dict.fromkeys(self._ids, 0)
        self._http: httpcore.AsyncConnectionPool

    def app(self) -> Starlette:
        """The ASGI application."""
        return Starlette(
            lifespan=self._lifespan,
            exception_handlers={HTTPException: _nothing_there},
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

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        # kept shorter than the workers' own keep-alive of 5 s, or requests would meet closing connections
        pool = httpcore.AsyncConnectionPool(max_connections=None, keepalive_expiry=4.0)
        async with pool as self._http:
            yield

    async def _completion(self, request: Request) -> Response:
        prefix = "chatcmpl" if request.url.path.endswith("chat/completions") else "cmpl"
        request_id = request.headers.get("x-request-id") or f"{prefix}-{self._random_id()}"
        try:
            body = _checked(await request.body(), chat=prefix == "chatcmpl")
            response = await unless_disconnected(request, self._attempts(request, body))
        except UpstreamError as error:
            response = _error(error)
        response.headers["x-request-id"] = request_id
        response.headers.update(_CORS)
        if "date" not in response.headers:
            response.headers["date"] = formatdate(usegmt=True)
        return response

    def _random_id(self) -> str:
        return "".join(self._dice.choices(string.ascii_letters + string.digits, k=24))

    async def _attempts(self, request: Request, body: Mapping[str, Any]) -> Response:
        for attempt in range(_ATTEMPTS):
            try:
                return await self._attempt(request, body)
            except UpstreamError as error:
                if error.status not in _RETRIED or attempt + 1 == _ATTEMPTS:
                    raise
                await asyncio.sleep(_BACKOFF_S[attempt] * self._plan.time_scale)
        raise AssertionError

    def _choose(self) -> tuple[Service, Service]:
        """The least loaded worker of each role, turn by turn among equals so that every pair has its turn."""
        turn = next(self._turn)
        prefills, decodes = self._plan.of(Role.PREFILL), self._plan.of(Role.DECODE)
        prefills = tuple(prefills[(turn + i) % len(prefills)] for i in range(len(prefills)))
        offset = turn + turn // len(prefills)
        decodes = tuple(decodes[(offset + i) % len(decodes)] for i in range(len(decodes)))
        return min(prefills, key=lambda s: self._load[s.name]), min(decodes, key=lambda s: self._load[s.name])

    async def _attempt(self, request: Request, body: Mapping[str, Any]) -> Response:
        """One dispatch to a pair of workers. Raises UpstreamError."""
        prefill, decode = self._choose()
        room = {
            "bootstrap_host": "127.0.0.1",
            "bootstrap_port": prefill.bootstrap_port,
            "bootstrap_room": self._dice.getrandbits(63),
        }
        raw = msgspec.json.encode({**body, **room})
        headers = {name: value for name in _KEPT if (value := request.headers.get(name))}
        async with AsyncExitStack() as stack:
            for worker in (prefill, decode):
                self._load[worker.name] += 1
                stack.callback(self._leave, worker)
            legs = [
                asyncio.create_task(self._prefill_leg(prefill, request.url.path, headers, raw)),
                asyncio.create_task(self._send(decode, request.url.path, headers, raw)),
            ]
            stack.push_async_callback(_settle, legs)
            await asyncio.wait(legs, return_when="FIRST_EXCEPTION")
            for leg in legs:
                if leg.done() and not leg.cancelled() and (error := leg.exception()) is not None:
                    raise error
            answer = legs[1].result()
            assert answer is not None
            passed_on = _passed_on(answer.headers)
            if not body.get("stream"):
                return Response(await answer.aread(), answer.status, passed_on)
            return _Passing(answer, passed_on, stack.pop_all())

    def _leave(self, worker: Service) -> None:
        self._load[worker.name] -= 1

    async def _prefill_leg(self, worker: Service, path: str, headers: Mapping[str, str], raw: bytes) -> None:
        """Wait for prefill's whole answer; nobody needs its text."""
        answer = await self._send(worker, path, headers, raw)
        try:
            await answer.aread()
        except _BROKEN:
            raise _unreachable(worker, path) from None

    async def _send(
        self, worker: Service, path: str, headers: Mapping[str, str], raw: bytes
    ) -> httpcore.Response:
        content = {"content-type": "application/json", "content-length": str(len(raw))}
        timeouts = {"connect": _CONNECT_S, "read": _REQUEST_S, "write": _REQUEST_S}
        try:
            answer = await self._call("POST", worker.url + path, {**headers, **content}, raw, timeouts)
            if answer.status >= 400:
                raise _refused(worker, answer.status, await answer.aread())
        except _BROKEN:
            raise _unreachable(worker, path) from None
        return answer

    async def _call(
        self, method: str, url: str, headers: Mapping[str, str], raw: bytes, timeouts: Mapping[str, float]
    ) -> httpcore.Response:
        sent = [("host", url.split("/")[2]), *headers.items()]
        request = httpcore.Request(method, url, headers=sent, content=raw, extensions={"timeout": timeouts})
        return await self._http.handle_async_request(request)

    async def _get(self, worker: Service, path: str) -> httpcore.Response:
        answer = await self._call("GET", worker.url + path, {}, b"", {"connect": _GET_S, "read": _GET_S})
        await answer.aread()
        return answer

    async def _health(self, request: Request) -> Response:
        return _plain(Response("OK", media_type=_TEXT))

    async def _health_generate(self, request: Request) -> Response:
        return _plain(Response("At least one router has healthy workers", media_type=_TEXT))

    async def _readiness(self, request: Request) -> Response:
        count = len(self._plan.of(Role.PREFILL)) + len(self._plan.of(Role.DECODE))
        return _plain(_json({"status": "ready", "healthy_workers": count, "total_workers": count}))

    async def _workers(self, request: Request) -> Response:
        prefills, decodes = self._plan.of(Role.PREFILL), self._plan.of(Role.DECODE)
        body = {
            "workers": [self._card(worker) for worker in (*prefills, *decodes)],
            "total": len(prefills) + len(decodes),
            "stats": {"prefill_count": len(prefills), "decode_count": len(decodes), "regular_count": 0},
        }
        return _plain(_json(body))

    def _card(self, worker: Service) -> dict[str, Any]:
        port = {} if worker.bootstrap_port is None else {"bootstrap_port": worker.bootstrap_port}
        return {
            "id": self._ids[worker.name],
            "url": worker.url,
            "model_id": self._plan.model,
            "priority": 50,
            "cost": 1.0,
            "worker_type": str(worker.role),
            "is_healthy": True,
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
        return _plain(_json({"workers": loads}))

    async def _one_load(self, worker: Service) -> int:
        try:
            answer = await self._get(worker, "/get_load")
        except _BROKEN:
            return -1
        return sum(rank["num_reqs"] for rank in msgspec.json.decode(answer.content))

    async def _models(self, request: Request) -> Response:
        card = {"id": self._plan.model, "object": "model", "owned_by": "local"}
        body = msgspec.json.encode({"object": "list", "data": [card]})
        return _plain(Response(body, media_type=_TEXT))

    async def _server_info(self, request: Request) -> Response:
        count = len(self._plan.of(Role.PREFILL)) + len(self._plan.of(Role.DECODE))
        body = msgspec.json.encode({"router_manager": True, "routers_count": 1, "workers_count": count})
        return _plain(Response(body, media_type=_TEXT))

    async def _model_info(self, request: Request) -> Response:
        worker = self._plan.of(Role.PREFILL)[0]
        try:
            answer = await self._get(worker, "/get_model_info")
        except _BROKEN:
            message = f"Failed to proxy request: error sending request for url ({worker.url}/get_model_info)"
            return _plain(_error(UpstreamError(500, "proxy_request_failed", message)))
        return _plain(Response(answer.content, answer.status, media_type="application/json; charset=utf-8"))


class _Passing(StreamingResponse):
    """A worker's stream passed on; however it ends, both of its requests are closed."""

    def __init__(
        self, answer: httpcore.Response, headers: Mapping[str, str], cleanup: AsyncExitStack
    ) -> None:
        super().__init__(answer.aiter_stream(), answer.status, dict(headers))
        self._cleanup = cleanup

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async with self._cleanup:
            await super().__call__(scope, receive, send)


async def _settle(legs: list[asyncio.Task[Any]]) -> None:
    """Cancel what still runs of a dispatch and close answers that nobody took."""
    for leg in legs:
        leg.cancel()
    await asyncio.wait(legs, timeout=5.0)
    for leg in legs:
        if leg.done() and not leg.cancelled() and leg.exception() is None and leg.result() is not None:
            await leg.result().aclose()


def _checked(raw: bytes, *, chat: bool) -> dict[str, Any]:
    """The request body as an object that has its prompt. Raises UpstreamError with the router's own texts."""
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        message = f"JSON syntax error: Failed to parse the request body as JSON: {error}"
        raise UpstreamError(400, "json_parse_error", message) from None
    needed = "messages" if chat else "prompt"
    if not isinstance(body, dict) or needed not in body:
        message = "Invalid JSON data: Failed to deserialize the JSON body into the target type: "
        message += f"missing field `{needed}` at line 1 column {len(raw)}"
        raise UpstreamError(400, "json_parse_error", message)
    return body


def _refused(worker: Service, status: int, raw: bytes) -> UpstreamError:
    """A worker's error status in the router's wrapping."""
    try:
        message = str(msgspec.json.decode(raw, type=dict)["message"])
    except (msgspec.DecodeError, KeyError):
        message = raw.decode("utf-8", "replace")
    reason = "internal_error" if status >= 500 else HTTPStatus(status).phrase.lower().replace(" ", "_")
    return UpstreamError(status, f"{worker.role}_{reason}", message)


def _unreachable(worker: Service, path: str) -> UpstreamError:
    hint = ". This will cause decode timeout." if worker.role is Role.PREFILL else ""
    message = (
        f"{worker.role.capitalize()} server error: error sending request for url ({worker.url}{path}){hint}"
    )
    return UpstreamError(502, f"{worker.role}_server_error", message)


def _error(error: UpstreamError) -> Response:
    if error.code == "json_parse_error":
        detail = {"message": str(error), "type": "invalid_request_error", "code": error.code}
        return _json({"error": detail}, error.status)
    phrase = HTTPStatus(error.status).phrase
    response = _json({"error": {"type": phrase, "code": error.code, "message": str(error)}}, error.status)
    response.headers["x-smg-error-code"] = error.code
    return response


def _json(body: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, media_type="application/json")


def _plain(response: Response) -> Response:
    response.headers["date"] = formatdate(usegmt=True)
    return response


def _passed_on(headers: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    named = ((name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in headers)
    return {name: value for name, value in named if name not in _HOP_HEADERS}


async def _nothing_there(request: Request, error: Exception) -> Response:
    """The real router's answer to unknown paths and methods: a bare status."""
    assert isinstance(error, HTTPException)
    return _plain(Response(status_code=error.status_code))
