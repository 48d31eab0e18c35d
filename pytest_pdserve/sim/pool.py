"""The KV memory of one engine: so many tokens, handed out in the order of asking."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pytest_pdserve.sim.tally import Tally


class Lease:
    """The KV of one request: how many tokens it holds now."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.tokens = 0
        self.leaked: asyncio.Event | None = None
        """What a request that leaves its KV behind waits for before it gives it back after all."""

    def resize(self, tokens: int) -> None:
        """Hold so many tokens from now on; 0 gives all back."""
        self._pool.change(tokens - self.tokens)
        self.tokens = tokens


class Pool:
    """An engine's KV memory of `capacity` tokens; the tally shows how many are taken."""

    def __init__(self, tally: Tally, capacity: int) -> None:
        self._tally = tally
        self._capacity = capacity
        self._waiting: deque[tuple[int, asyncio.Event]] = deque()
        self._leaks: set[asyncio.Task[None]] = set()

    def fits(self, tokens: int) -> bool:
        """Whether so many more tokens have room now."""
        return self._tally.kv_tokens + tokens <= self._capacity

    @asynccontextmanager
    async def lease(self, tokens: int) -> AsyncIterator[Lease]:
        """Wait for room for so many tokens; whatever the lease holds at the end is given back."""
        if self._waiting or not self.fits(tokens):
            await self._turn(tokens)
        lease = Lease(self)
        lease.resize(tokens)
        try:
            yield lease
        finally:
            if lease.leaked is None:
                lease.resize(0)
            else:
                leak = asyncio.create_task(self._leak(lease, lease.leaked))
                self._leaks.add(leak)
                leak.add_done_callback(self._leaks.discard)

    async def _leak(self, lease: Lease, mended: asyncio.Event) -> None:
        await mended.wait()
        lease.resize(0)

    def change(self, tokens: int) -> None:
        """Take more tokens or give some back; whoever waits longest goes on when there is room."""
        self._tally.kv_tokens += tokens
        self._call_next()

    async def _turn(self, tokens: int) -> None:
        entry = (tokens, asyncio.Event())
        self._waiting.append(entry)
        try:
            while not (self._waiting[0] is entry and self.fits(tokens)):
                entry[1].clear()
                await entry[1].wait()
        finally:
            self._waiting.remove(entry)
            self._call_next()

    def _call_next(self) -> None:
        if self._waiting and self.fits(self._waiting[0][0]):
            self._waiting[0][1].set()
