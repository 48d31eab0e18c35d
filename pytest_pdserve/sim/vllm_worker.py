"""A simulated vLLM worker: any of them can do the whole work; KV parameters in a request join two of them."""

from __future__ import annotations

import uuid
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, ClassVar

from prometheus_client import GCCollector, PlatformCollector, ProcessCollector
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pytest_pdserve.sim import vllm
from pytest_pdserve.sim.output import Whole
from pytest_pdserve.sim.vllm_metrics import VllmCollector
from pytest_pdserve.sim.worker import Worker

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

    from starlette.requests import Request

    from pytest_pdserve.sim.ask import Ask
    from pytest_pdserve.sim.faults import Strikes
    from pytest_pdserve.sim.faults.base import Outputs
    from pytest_pdserve.sim.plan import Plan, Service


class VllmWorker(Worker):
    """One vLLM worker."""

    stream_headers: ClassVar[Mapping[str, str]] = {
        "content-type": "text/event-stream; charset=utf-8",
        "vary": "Origin",
    }

    def __init__(self, plan: Plan, service: Service, bootstrap: socket.socket | None) -> None:
        super().__init__(plan, service, bootstrap, vllm)
        self._engine_id = str(uuid.uuid4())
        self._metrics.register(VllmCollector(plan, service.role, self._tally))
        for kind in (ProcessCollector, PlatformCollector, GCCollector):
            kind(registry=self._metrics)

    def _own_routes(self) -> list[Route]:
        return [Route("/version", self._version), Route("/ping", self._health), Route("/load", self._load)]

    async def _outputs(self, ask: Ask, strikes: Strikes) -> Outputs:
        async with aclosing(self._decode.decode(ask, strikes)) as outputs:
            async for output in outputs:
                yield output

    async def _whole(self, ask: Ask, strikes: Strikes, request_id: str | None) -> Response:
        if not ask.hold:
            return await super()._whole(ask, strikes, request_id)
        await strikes.before_answer()
        outputs, room = await self._prefill.hold(ask, strikes)
        transfer: dict[str, Any] = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [[room]],
            "remote_engine_id": self._engine_id,
            "remote_request_id": str(room),
            "remote_host": "127.0.0.1",
            "remote_port": self._service.bootstrap_port,
            "tp_size": 1,
        }
        answers = [Whole(output.text, output.tokens, output) for output in outputs]
        return JSONResponse(self._speech.writer(ask, request_id).whole(answers, transfer))

    async def _version(self, request: Request) -> Response:
        return JSONResponse({"version": vllm.VERSION})

    async def _load(self, request: Request) -> Response:
        return JSONResponse({"server_load": sum(self._tally.stages.values())})
