"""Helpers about tasks: endless ones, ones that end when their client leaves, and several streams as one."""

from __future__ import annotations

import asyncio
import os
import traceback
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.responses import StreamingResponse

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Mapping, Sequence

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send


Result = TypeVar("Result")


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


class ClosingStream(StreamingResponse):
    """A streamed answer whose source is closed however the stream ends, also between two of its pieces."""

    def __init__(self, content: AsyncGenerator[bytes, None], status: int, headers: Mapping[str, str]) -> None:
        super().__init__(content, status, headers)
        self.source = content

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream, then close its source."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self.source.aclose()


class ClientLeft(Exception):
    """The client has disconnected; nobody reads an answer any more."""


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """Await work for a client, but give it up as soon as the client disconnects. Raises ClientLeft.

    Starlette watches for this itself only while it streams.
    """
    task = asyncio.create_task(work)
    watch = asyncio.create_task(_disconnect(request))
    try:
        await asyncio.wait({task, watch}, return_when="FIRST_COMPLETED")
        if not task.done():
            raise ClientLeft
        return await task
    finally:
        for each in (task, watch):
            each.cancel()
        await asyncio.wait({task, watch}, timeout=5.0)


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        continue


async def merged(streams: Sequence[AsyncGenerator[Result, None]]) -> AsyncGenerator[Result, None]:
    """What several streams yield, as it comes; raises what the first of them to break raises, and closes them all."""
    queue: asyncio.Queue[Result | None] = asyncio.Queue()

    async def pump(stream: AsyncGenerator[Result, None]) -> None:
        try:
            async with aclosing(stream):
                async for item in stream:
                    queue.put_nowait(item)
        finally:
            queue.put_nowait(None)

    tasks = [asyncio.create_task(pump(stream)) for stream in streams]
    try:
        going = len(tasks)
        while going:
            item = await queue.get()
            if item is not None:
                yield item
                continue
            going -= 1
            for task in tasks:
                if task.done():
                    task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=5.0)
