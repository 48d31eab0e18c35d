"""The simulator's helpers about tasks and streams."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from pytest_pdserve.sim.loops import ClosingStream, merged

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


class Source:
    """A stream that knows whether it was closed."""

    def __init__(self, *items: str, then: Exception | None = None) -> None:
        self._items = items
        self._then = then
        self.closed = False

    async def stream(self) -> AsyncGenerator[Any, None]:
        try:
            for item in self._items:
                yield item
                await asyncio.sleep(0)
            if self._then is not None:
                raise self._then
        finally:
            self.closed = True


def test_a_stream_that_nobody_finished_is_closed_at_once() -> None:
    async def serve() -> bool:
        source = Source("a", "b")
        response = ClosingStream(source.stream(), 200, {})

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                raise ConnectionError

        async def receive() -> Any:
            await asyncio.sleep(10)

        with pytest.raises(BaseException):  # noqa: B017, PT011 -- however the framework wraps it
            await response({"type": "http", "asgi": {"spec_version": "2.4"}}, receive, send)
        return source.closed

    assert asyncio.run(serve())


def test_several_streams_come_as_one() -> None:
    async def gather() -> list[str]:
        return [item async for item in merged([Source("a", "b").stream(), Source("c").stream()])]

    assert sorted(asyncio.run(gather())) == ["a", "b", "c"]


def test_the_first_break_ends_them_all() -> None:
    async def gather() -> bool:
        slow = Source(*"abcdefgh" * 50)
        with pytest.raises(ValueError, match="broken"):
            async for _ in merged([Source("x", then=ValueError("broken")).stream(), slow.stream()]):
                pass
        return slow.closed

    assert asyncio.run(gather())


def test_leaving_early_closes_them_all() -> None:
    async def gather() -> list[bool]:
        sources = [Source("a", "b"), Source("c", "d")]
        stream = merged([source.stream() for source in sources])
        await anext(stream)
        await stream.aclose()
        return [source.closed for source in sources]

    assert asyncio.run(gather()) == [True, True]
