"""What an application can't see by ASGI alone: its connection, how often it was used, and how to reset it."""

from __future__ import annotations

import os
import socket
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

if TYPE_CHECKING:
    import asyncio

    from starlette.requests import Request

_KEY = "pdserve.connection"


@dataclass(frozen=True, slots=True)
class Connection:
    """The connection a request came on."""

    transport: asyncio.Transport
    requests: int
    idle: float = 0.0
    """Seconds between the last answer on it and this request."""

    @classmethod
    def of(cls, request: Request) -> Connection:
        """The connection of a request that came through `Protocol`."""
        connection = request.scope[_KEY]
        assert isinstance(connection, cls)
        return connection

    @property
    def reused(self) -> bool:
        """Whether another request came on it before."""
        return self.requests > 1

    def reset(self) -> None:
        """End it with a TCP reset."""
        if not self.transport.is_closing():
            own = socket.socket(fileno=os.dup(self.transport.get_extra_info("socket").fileno()))
            with own:
                own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.transport.abort()


class Protocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol, which also tells the application of its connection."""

    _begun = 0
    _answered = 0.0

    def on_message_begin(self) -> None:
        """Number the request."""
        super().on_message_begin()
        self._begun += 1
        idle = time.monotonic() - self._answered if self._answered else 0.0
        self.scope[_KEY] = Connection(self.transport, self._begun, idle)  # type: ignore[literal-required]

    def on_response_complete(self) -> None:
        """Remember when the answer was sent."""
        self._answered = time.monotonic()
        super().on_response_complete()
