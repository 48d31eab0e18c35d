"""How many requests a worker counts as open at once, which faults that strike above a level go by."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from pytest_pdserve.sim.plan import Plan, Role, Service
from pytest_pdserve.sim.vllm_worker import VllmWorker

if TYPE_CHECKING:
    import pytest

    from pytest_pdserve.sim.faults import Call

BODY = b'{"messages": [{"role": "user", "content": "code: 5"}], "max_tokens": 3}'
SCOPE = {
    "type": "http",
    "method": "POST",
    "path": "/v1/chat/completions",
    "headers": [(b"content-type", b"application/json")],
    "query_string": b"",
}


class Unused:
    """A connection of which nothing is wanted."""

    reused = False
    idle = 0.0

    def reset(self) -> None:
        raise AssertionError


def test_requests_that_come_in_the_same_moment_are_all_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service("decode-0", Role.DECODE, 1)
    worker = VllmWorker(Plan(services=(service,)), service, None)
    seen: list[int] = []
    monkeypatch.setattr("pytest_pdserve.sim.worker.Connection.of", lambda request: Unused())
    admit = worker._faults.admit

    def note(call: Call) -> Any:
        seen.append(call.concurrency)
        return admit(call)

    monkeypatch.setattr(worker._faults, "admit", note)

    async def ask() -> None:
        async def receive() -> Any:
            if not told:
                told.append(1)
                return {"type": "http.request", "body": BODY, "more_body": False}
            return await asyncio.sleep(60)

        async def send(message: Any) -> None:
            return

        told: list[int] = []
        await worker.app()(dict(SCOPE), receive, send)

    async def together() -> None:
        engine = asyncio.create_task(worker._decode.run())
        async with asyncio.timeout(30):
            await asyncio.gather(*(ask() for _ in range(8)))
        engine.cancel()

    asyncio.run(together())
    assert sorted(seen) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert worker._open == 0
