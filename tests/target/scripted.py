"""A scripted HTTP server on loopback that answers as real servers were seen to, and remembers who asked."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

Raw = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Said:
    """One answer."""

    body: object = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)

    def encoded(self) -> bytes:
        body = self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()
        kind = "text/plain" if isinstance(self.body, bytes) else "application/json"
        headers = {"content-type": kind, "content-length": str(len(body)), **self.headers}
        head = f"HTTP/1.1 {self.status} X\r\n" + "".join(
            f"{name}: {value}\r\n" for name, value in headers.items()
        )
        return head.encode() + b"\r\n" + body


async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Say nothing until the other side has gone."""
    await reader.read()


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Close without a word."""


async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Speak, but not HTTP."""
    writer.write(b"\x16\x03\x01 220 smtp.example.org ready\r\n\x1b[31m\r\n\r\n")


class Server:
    """An async context manager; `paths` maps "/path" or "POST /path" to an answer or a raw behaviour.

    The path "*" stands for all others, and "connect" for what happens before anything has been read.
    """

    def __init__(self, paths=None, *, ssl=None, host="127.0.0.1"):
        self.paths = dict(paths or {})
        self.was_asked = asyncio.Event()
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.ssl = ssl
        self.host = host

    async def __aenter__(self):
        self.server = await asyncio.start_server(self._serve, self.host, 0, ssl=self.ssl)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self.server.close()

    @property
    def url(self):
        return f"{'https' if self.ssl else 'http'}://{self.host}:{self.port}"

    def keys(self):
        """The Authorization headers that came, and None for requests without one."""
        return {headers.get("authorization") for _, headers in self.asked}

    async def _serve(self, reader, writer):
        try:
            if "connect" in self.paths:
                await self.paths["connect"](reader, writer)
                return
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                request, *lines = head.split("\r\n")
                headers = {
                    name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)
                }
                await reader.readexactly(int(headers.get("content-length", "0")))
                method, path, _ = request.split(" ")
                self.asked.append((path if method == "GET" else f"{method} {path}", headers))
                self.was_asked.set()
                answer = self.paths.get(
                    self.asked[-1][0], self.paths.get("*", Said({"detail": "Not Found"}, 404))
                )
                if not isinstance(answer, Said):
                    await answer(reader, writer)
                    return
                writer.write(answer.encoded())
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


async def closed_port():
    """A loopback URL that refuses connections."""
    async with Server() as server:
        return server.url
