"""A simulated SGLang worker: its role decides what it does with a request, and rooms join two of them."""

from __future__ import annotations

from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar

from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pytest_pdserve.sim import sglang
from pytest_pdserve.sim.metrics import SglangCollector, queue_depths
from pytest_pdserve.sim.plan import Plan, Role, Service
from pytest_pdserve.sim.tally import Stage
from pytest_pdserve.sim.worker import Worker

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

    from starlette.requests import Request

    from pytest_pdserve.sim.ask import Ask
    from pytest_pdserve.sim.faults import Strikes
    from pytest_pdserve.sim.faults.base import Outputs


class SglangWorker(Worker):
    """One SGLang worker."""

    stream_headers: ClassVar[Mapping[str, str]] = {"content-type": "text/event-stream"}

    def __init__(self, plan: Plan, service: Service, bootstrap: socket.socket | None) -> None:
        super().__init__(plan, service, bootstrap, sglang)
        self._metrics.register(SglangCollector(plan, service.role, self._tally))

    def _own_routes(self) -> list[Route]:
        return [
            Route("/health_generate", self._health),
            *(Route(path, self._server_info) for path in ("/server_info", "/get_server_info")),
            *(Route(path, self._model_info) for path in ("/model_info", "/get_model_info")),
            Route("/v1/loads", self._loads),
            Route("/get_load", self._old_load),
        ]

    async def _outputs(self, ask: Ask, strikes: Strikes) -> Outputs:
        if self._service.role is Role.PREFILL:
            yield await self._prefill.prefill(ask, strikes)
            return
        async with aclosing(self._decode.decode(ask, strikes)) as outputs:
            async for output in outputs:
                yield output

    async def _server_info(self, request: Request) -> Response:
        return JSONResponse(sglang.server_info(self._plan, self._service.role))

    async def _model_info(self, request: Request) -> Response:
        return JSONResponse(sglang.model_info(self._plan))

    async def _loads(self, request: Request) -> Response:
        include = set(request.query_params.get("include", "all").split(","))
        tally, depths = self._tally, queue_depths(self._tally, self._service.role)
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
            load["queues"] = {
                "waiting": waiting,
                "grammar": 0,
                "paused": 0,
                "retracted": tally.stages[Stage.RETRACTED],
            }
        stamp = datetime.now(UTC).isoformat()
        return JSONResponse({"timestamp": stamp, "version": sglang.VERSION, "loads": [load]})

    async def _old_load(self, request: Request) -> Response:
        tally = self._tally
        waiting = tally.stages[Stage.WAITING]
        requests = sum(tally.stages.values())
        load = {
            "dp_rank": 0,
            "num_reqs": requests,
            "num_waiting_reqs": waiting,
            "num_tokens": tally.kv_tokens,
        }
        return JSONResponse([load])
