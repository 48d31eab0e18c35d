import asyncio

import httpx
import pytest

from pytest_pdserve.settings import Settings
from pytest_pdserve.target import resolve
from pytest_pdserve.wire import Transport


@pytest.fixture
def run():
    """Runs a coroutine, bounded, and finds tasks that were left behind."""

    async def watched(coroutine):
        result = await asyncio.wait_for(coroutine, 20)
        await asyncio.sleep(0)
        return result

    return lambda coroutine: asyncio.run(watched(coroutine))


@pytest.fixture
def ask_target():
    """Resolves settings made from keyword arguments with a client of its own."""

    async def ask_target(entry, *, ssl_context=None, **kwargs):
        settings = Settings(**{"name": "t", "entry": entry, **kwargs})
        transport = Transport(ssl_context=ssl_context)
        async with httpx.AsyncClient(transport=transport, trust_env=False) as client:
            return await resolve(settings, client)

    return ask_target


@pytest.fixture
def hasty(monkeypatch):
    """Short waits, for servers that say nothing."""
    for step in ("FIRST", "RIGHTS", "WORKERS", "VERSION"):
        monkeypatch.setattr(f"pytest_pdserve.target.inquiry.{step}", 0.3)
