"""The hand-over of a prompt's KV from a prefill worker to a decode worker.

Decode connects to prefill's bootstrap port and names the request's room; prefill answers with the KV once it
has computed it; decode acknowledges. The KV of the toy model is the prompt's tokens in pages: what decode
knows of a prompt is what arrives here, and nothing else.

On the wire: 8 bytes room (big-endian) to prefill; 4 bytes length and that many bytes of MessagePack back;
one byte of acknowledgement to prefill. A connection that ends earlier is a failed transfer.
"""

from __future__ import annotations

import asyncio
import struct
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Callable, Sequence

PAGE_TOKENS = 64
"""Tokens in one page, SGLang's page size for most large models."""


class TransferError(Exception):
    """The KV did not come over; the text says why."""


@dataclass(frozen=True, slots=True)
class Handoff:
    """What prefill hands to decode: the KV in pages, the first output token, and how much was cached."""

    pages: tuple[tuple[bytes, ...], ...]
    first: bytes
    cached_tokens: int

    @property
    def context(self) -> list[bytes]:
        """The prompt's tokens, as they can be read from the pages."""
        return [piece for page in self.pages for piece in page]


def paged(pieces: Sequence[bytes]) -> tuple[tuple[bytes, ...], ...]:
    """Lay tokens out in pages."""
    return tuple(tuple(pieces[at : at + PAGE_TOKENS]) for at in range(0, len(pieces), PAGE_TOKENS))


@dataclass(slots=True)
class Room:
    """One hand-over, known to both sides by its number."""

    opened: bool = False
    claimed: asyncio.Event = field(default_factory=asyncio.Event)
    met: asyncio.Event = field(default_factory=asyncio.Event)
    """Both sides are there and know of each other."""
    offer: asyncio.Future[Handoff] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    outcome: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


_MET = b"\x05"


class Depot:
    """The rooms of one prefill worker and the server on its bootstrap port."""

    def __init__(self, transfer_s: Callable[[int], float], timeout_s: float) -> None:
        self._transfer_s = transfer_s
        self._timeout_s = timeout_s
        self._rooms: dict[int, Room] = {}

    @asynccontextmanager
    async def listening(self, sock: socket.socket) -> AsyncIterator[None]:
        """Serve hand-overs on a listening socket for as long as the context lasts."""
        server = await asyncio.start_server(self._serve, sock=sock)
        async with server:
            yield

    @asynccontextmanager
    async def room(self, number: int) -> AsyncIterator[Room]:
        """Prefill's side of a room. When it leaves before handing over, decode's side fails."""
        room = self._rooms.setdefault(number, Room())
        room.opened = True
        try:
            yield room
        finally:
            self._rooms.pop(number, None)
            if not room.offer.done():
                room.offer.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            number = int.from_bytes(await asyncio.wait_for(reader.readexactly(8), self._timeout_s), "big")
            room = self._rooms.setdefault(number, Room())
            room.claimed.set()
            try:
                await self._hand_over(room, reader, writer)
            except (OSError, TimeoutError, TransferError) as error:
                room.outcome.set_exception(TransferError(str(error)))
                room.outcome.exception()  # prefill may have given up on it already
            else:
                room.outcome.set_result(None)
            finally:
                if not room.opened:
                    self._rooms.pop(number, None)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            return  # whoever connected never named a room
        finally:
            writer.close()

    async def _hand_over(
        self, room: Room, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Wait for the offer, send it and see it acknowledged. Raises TransferError, OSError, TimeoutError."""
        answer = asyncio.ensure_future(reader.read(1))
        met = asyncio.ensure_future(room.met.wait())
        try:
            first: set[asyncio.Future[Any]] = {answer, met, room.offer}
            await asyncio.wait(first, timeout=self._timeout_s, return_when="FIRST_COMPLETED")
            if met.done():
                writer.write(_MET)
            both: set[asyncio.Future[Any]] = {answer, room.offer}
            await asyncio.wait(both, timeout=self._timeout_s, return_when="FIRST_COMPLETED")
            if answer.done():
                raise TransferError("decode left before the KV was transferred")
            if not room.offer.done() or room.offer.cancelled():
                raise TransferError("prefill gave up before the KV was transferred")
            handoff = room.offer.result()
            tokens = sum(map(len, handoff.pages))
            await asyncio.sleep(self._transfer_s(tokens))
            body = msgspec.msgpack.encode(handoff)
            writer.write(struct.pack(">I", len(body)) + body)
            if await asyncio.wait_for(answer, self._timeout_s) == b"":
                raise TransferError("decode left before the KV was transferred")
        finally:
            answer.cancel()
            met.cancel()


async def pull(host: str, port: int, room: int, timeout_s: float, met: Callable[[], None]) -> Handoff:
    """Decode's side: ask prefill for a room's KV and acknowledge it. Calls `met` when prefill has answered at all.

    Raises TransferError when prefill is not there, gives up, or says nothing for `timeout_s` seconds.
    """
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(room.to_bytes(8, "big"))
                await reader.readexactly(len(_MET))
                met()
                (length,) = struct.unpack(">I", await reader.readexactly(4))
                handoff = msgspec.msgpack.decode(await reader.readexactly(length), type=Handoff)
                writer.write(b"\x06")
                await writer.drain()
                return handoff
            finally:
                writer.close()
    except TimeoutError:
        raise TransferError(f"timed out after {timeout_s:g}s in KVPoll.WaitingForInput") from None
    except (OSError, asyncio.IncompleteReadError):
        raise TransferError("prefill closed the transfer connection") from None
