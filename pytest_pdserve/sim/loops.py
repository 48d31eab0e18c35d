"""Two small helpers about tasks: one that must never end, and one that ends when its client leaves."""

from __future__ import annotations

import asyncio
import os
import traceback
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from starlette.requests import Request


@asynccontextmanager
async def forever(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run endless work beside the context. If it breaks, so does the process, as an engine's does."""
    task = asyncio.create_task(work)
    task.add_done_callback(_broken)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task}, timeout=1.0)


def _broken(task: asyncio.Task[None]) -> None:
    if task.cancelled():
        return
    error = task.exception()
    if error is not None:
        traceback.print_exception(error)
    os._exit(70)


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """Await an answer, but give it up as soon as the client disconnects; then nobody reads the answer.

    Starlette watches for this itself only while it streams.
    """
    task = asyncio.create_task(work)
    watch = asyncio.create_task(_disconnect(request))
    try:
        await asyncio.wait({task, watch}, return_when="FIRST_COMPLETED")
        return await task if task.done() else Response(status_code=499)
    finally:
        for each in (task, watch):
            each.cancel()
        await asyncio.wait({task, watch}, timeout=5.0)


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        continue
