"""Name resolution that can't block the run."""

from __future__ import annotations

import asyncio
import socket
import threading
from ipaddress import ip_address
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

AddressInfo = tuple[int, int, int, str, tuple[str, int] | tuple[str, int, int, int]]


class Resolver:
    """Resolves host names in daemon threads.

    A `getaddrinfo` call can't be interrupted and may take minutes. asyncio's own way, the default executor,
    has its threads joined when the loop and the interpreter end. A daemon thread is simply left behind. Requests for
    a name that is being looked up already wait for that look-up; so a stuck name costs one thread.
    """

    def __init__(self) -> None:
        self._running: dict[tuple[str, int], asyncio.Future[Sequence[AddressInfo]]] = {}

    async def resolve(self, host: str, port: int) -> Sequence[AddressInfo]:
        """The addresses of `host`, for TCP. Raises OSError (socket.gaierror). Bound it from outside."""
        if _is_address(host):
            flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
            return _addresses(host, port, flags)
        key = (host, port)
        running = self._running.get(key)
        if running is None:
            running = asyncio.get_running_loop().create_future()
            self._running[key] = running
            running.add_done_callback(lambda _done: self._running.pop(key))
            threading.Thread(
                target=_look_up, args=(host, port, running), name=f"resolve {host}", daemon=True
            ).start()
        return await asyncio.shield(running)


def _look_up(host: str, port: int, result: asyncio.Future[Sequence[AddressInfo]]) -> None:
    answer: Sequence[AddressInfo] | OSError
    try:
        answer = _addresses(host, port, 0)
    except (OSError, UnicodeError) as error:
        answer = error if isinstance(error, OSError) else OSError(f"not a valid host name: {error}")
    try:
        result.get_loop().call_soon_threadsafe(_deliver, result, answer)
    except RuntimeError:  # the loop is closed: nobody waits any more
        return


def _deliver(result: asyncio.Future[Sequence[AddressInfo]], answer: Sequence[AddressInfo] | OSError) -> None:
    if isinstance(answer, OSError):
        result.set_exception(answer)
        result.exception()  # marks it as seen, should everybody who waited have left
    else:
        result.set_result(answer)


def _addresses(host: str, port: int, flags: int) -> Sequence[AddressInfo]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=flags)
    return [(int(family), int(kind), proto, name, address) for family, kind, proto, name, address in found]  # type: ignore[misc]


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
