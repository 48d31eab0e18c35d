from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


@pytest.fixture(params=list(LOOPS))
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Runs a coroutine, bounded, on a loop of each kind."""

    def bounded(coroutine: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            return runner.run(asyncio.wait_for(coroutine, 30))

    return bounded
