"""Opening a connection: name, TCP, TLS, each stamped."""

from __future__ import annotations

import asyncio
import socket
from time import monotonic
from typing import TYPE_CHECKING, Final, cast

import aiohappyeyeballs
import httpx

from pytest_pdserve.wire.failures import cause
from pytest_pdserve.wire.timeline import Phase
from pytest_pdserve.wire.words import seconds

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Sequence

    from pytest_pdserve.wire.connection import Connection, Origin
    from pytest_pdserve.wire.resolve import AddressInfo, Resolver
    from pytest_pdserve.wire.timeline import Timeline

HAPPY_EYEBALLS_DELAY: Final = 0.25
"""Seconds until the next address is tried beside the one under way (RFC 8305, section 5)."""
_DAY: Final = 86_400.0


async def connect(
    origin: Origin,
    *,
    make: Callable[[], Connection],
    resolver: Resolver,
    ssl_context: ssl.SSLContext | None,
    timeline: Timeline,
    timeout: float | None,
) -> Connection:
    """A new connection to `origin`, over TLS if there is an `ssl_context`, within `timeout` seconds.

    Raises httpx.ConnectError or httpx.ConnectTimeout, with a text that says which step failed and how.
    """
    timeline.tls = ssl_context is not None
    try:
        async with asyncio.timeout(timeout):
            addresses = await _resolve(origin, resolver)
            timeline.resolved = monotonic()
            sock = await _open(origin, addresses)
            timeline.connected = monotonic()
            connection = await _secure(origin, sock, make, ssl_context)
            if ssl_context is not None:
                timeline.secured = monotonic()
            return connection
    except TimeoutError:
        raise httpx.ConnectTimeout(_too_slow(origin, timeline.phase, timeout or 0.0)) from None


async def _resolve(origin: Origin, resolver: Resolver) -> Sequence[AddressInfo]:
    try:
        return await resolver.resolve(origin.host, origin.port)
    except socket.gaierror as error:
        reason = "name not found" if error.errno in _UNKNOWN_NAME else f"name lookup failed: {error.strerror}"
        raise httpx.ConnectError(f"{origin.host!r}: {reason}") from error
    except OSError as error:
        raise httpx.ConnectError(f"{origin.host!r}: name lookup failed: {cause(error)}") from error


async def _open(origin: Origin, addresses: Sequence[AddressInfo]) -> socket.socket:
    try:
        return await aiohappyeyeballs.start_connection(
            cast("Sequence[aiohappyeyeballs.AddrInfoType]", addresses),
            happy_eyeballs_delay=HAPPY_EYEBALLS_DELAY,
        )
    except TimeoutError as error:  # the system's own (ETIMEDOUT); ours arrives as a cancellation
        raise httpx.ConnectError(f"{cause(error)}: {_tried(origin, addresses)}") from error
    except (OSError, RuntimeError) as error:
        raise httpx.ConnectError(f"{cause(error)}: {_tried(origin, addresses)}") from error


async def _secure(
    origin: Origin, sock: socket.socket, make: Callable[[], Connection], ssl_context: ssl.SSLContext | None
) -> Connection:
    loop = asyncio.get_running_loop()
    try:
        if ssl_context is None:
            return (await loop.create_connection(make, sock=sock))[1]
        _, connection = await loop.create_connection(
            make,
            sock=sock,
            ssl=ssl_context,
            server_hostname=origin.host,
            ssl_handshake_timeout=_DAY,  # the time allowed for connecting ends it, not a limit of its own
        )
    except (ConnectionResetError, ConnectionAbortedError, BrokenPipeError) as error:
        raise httpx.ConnectError(
            f"{origin.place}: the server closed the connection during the TLS handshake"
        ) from error
    except (OSError, ValueError) as error:
        raise httpx.ConnectError(f"{origin.place}: {cause(error)}") from error
    except asyncio.CancelledError:
        if not isinstance(loop, asyncio.BaseEventLoop):
            # uvloop closes the descriptor, but leaves it in `sock`, which would close another one of that number.
            sock.detach()
        raise
    return connection


def _tried(origin: Origin, addresses: Sequence[AddressInfo]) -> str:
    others = sorted({address[4][0] for address in addresses} - {origin.host})
    return f"{origin.place} ({', '.join(others[:4])})" if others else origin.place


def _too_slow(origin: Origin, phase: Phase, timeout: float) -> str:
    match phase:
        case Phase.RESOLVE:
            return f"{origin.host!r}: the name was not resolved within {seconds(timeout)}"
        case Phase.CONNECT:
            return f"{origin.place}: no answer to the connection attempt within {seconds(timeout)}"
        case _:
            return f"{origin.place}: the TLS handshake was not done within {seconds(timeout)}"


_UNKNOWN_NAME: Final = {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}
