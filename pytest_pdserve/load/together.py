"""A number of chats started in the same moment."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

T = TypeVar("T")


async def together(calls: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """Start all `calls` at once; their results in the same order.

    Each call has to have its own deadline. If one raises, the others are cancelled and its exception is raised.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_awaited(call)) for call in calls]
    except BaseExceptionGroup as raised:
        raise raised.exceptions[0] from None
    return [task.result() for task in tasks]


async def _awaited(call: Callable[[], Awaitable[T]]) -> T:
    return await call()
