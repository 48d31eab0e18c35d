"""Content decoding of a whole body, after the measured window, with every chunk's stamp kept."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final, NamedTuple

from pytest_pdserve.wire.stamped import Stamped
from pytest_pdserve.wire.words import shown, size

if TYPE_CHECKING:
    from zlib import _Decompress

ACCEPTED: Final = "gzip, deflate"
"""The `accept-encoding` that `decode` can keep up with."""
_GZIP: Final = 16 + zlib.MAX_WBITS
_RAW: Final = -zlib.MAX_WBITS


class Decoded(NamedTuple):
    """A decoded body, and what was wrong with it."""

    body: Stamped
    problem: str | None
    """One line, or None; `body` then has what could be decoded before it."""


def decode(body: Stamped, encoding: str, *, max_bytes: int, whole: bool) -> Decoded:
    """Undo the content encoding of `body`: `gzip`, `deflate` or none.

    Every decoded chunk has the stamp of the chunk that made it possible. Decoding stops at `max_bytes`, so a small
    body can't become a huge one. `whole` says that the message is complete, so that the compressed data must be too.
    """
    match encoding.strip().lower():
        case "" | "identity":
            return Decoded(body, None)
        case "gzip" | "x-gzip":
            inflater = _Inflater(_GZIP, max_bytes)
        case "deflate":
            inflater = _Inflater(zlib.MAX_WBITS if _has_zlib_header(body.data) else _RAW, max_bytes)
        case unknown:
            return Decoded(body, f"content encoding {shown(unknown.encode())} is not understood")
    try:
        for at, chunk in body:
            inflater.feed(at, chunk)
    except zlib.error as error:
        return Decoded(
            inflater.out, f"not {encoding} after {size(len(inflater.out))} of content: {_words(error)}"
        )
    if inflater.too_large:
        return Decoded(inflater.out, f"{encoding} content over the limit of {size(max_bytes)}")
    if whole and len(body) and not inflater.finished:
        return Decoded(
            inflater.out, f"{encoding} data ends early, after {size(len(inflater.out))} of content"
        )
    return Decoded(inflater.out, None)


class _Inflater:
    """Decompresses chunk by chunk into stamped bytes; gzip may have several members."""

    def __init__(self, wbits: int, max_bytes: int) -> None:
        self.out = Stamped()
        self.too_large = False
        self._wbits = wbits
        self._max_bytes = max_bytes
        self._stream: _Decompress = zlib.decompressobj(wbits)

    @property
    def finished(self) -> bool:
        return self._stream.eof

    def feed(self, at: float, chunk: bytes) -> None:
        """Raises zlib.error."""
        out = bytearray()
        while chunk and not self.too_large:
            if self._stream.eof:
                self._stream = zlib.decompressobj(self._wbits)
            left = self._max_bytes - len(self.out) - len(out)
            out += self._stream.decompress(chunk, left + 1)  # a max_length of 0 would mean no limit
            self.too_large = len(self.out) + len(out) > self._max_bytes
            chunk = self._stream.unused_data if self._stream.eof else self._stream.unconsumed_tail
        if self.too_large:
            del out[self._max_bytes - len(self.out) :]
        self.out.append(at, out)


def _has_zlib_header(data: bytearray) -> bool:
    """`deflate` means zlib's format (RFC 9110, 8.4.1.2), but some servers send it bare."""
    return len(data) >= 2 and data[0] & 0x0F == 8 and int.from_bytes(data[:2]) % 31 == 0


def _words(error: zlib.error) -> str:
    """What zlib says behind its `Error -3 while decompressing data:`."""
    return str(error).rpartition(": ")[2]
