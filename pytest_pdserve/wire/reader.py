"""Parsing of one HTTP/1.x response as its bytes arrive; no I/O."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import httptools

from pytest_pdserve.wire.failures import ClosedEarly, Garbled, lost
from pytest_pdserve.wire.stamped import Stamped
from pytest_pdserve.wire.words import shown, size

if TYPE_CHECKING:
    from pytest_pdserve.wire.timeline import Timeline

MAX_HEAD_BYTES: Final = 64 * 1024
"""Most bytes of one response's header fields and trailers together, 1xx responses included."""
MAX_FIELDS: Final = 256
"""Most header fields and trailers of one response, 1xx responses included."""

Fields = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A response's status line and header fields."""

    status: int
    phrase: bytes
    fields: Fields
    version: str
    """`1.0` or `1.1`."""


class ResponseReader:
    """Reads one response: 1xx responses, head, body and trailers.

    Give it every chunk (`feed`), and how the connection ended (`eof`, `lost`) if it did; it is `over` when either
    the message is whole (`complete`) or there is an `error`, and takes no notice of anything after that.

    The parser appends body bytes straight to `body`, which therefore holds whatever arrived, also on errors.
    """

    __slots__ = (
        "_at",
        "_bodyless",
        "_field_count",
        "_fields",
        "_final",
        "_first",
        "_head_bytes",
        "_limit",
        "_parser",
        "_phrase",
        "_quiet_bytes",
        "_seen",
        "_taken",
        "body",
        "complete",
        "error",
        "head",
        "keep_alive",
        "on_body",
        "timeline",
        "trailers",
        "until_close",
    )

    def __init__(self, timeline: Timeline, *, method: str) -> None:
        self.timeline = timeline
        self.body = Stamped()
        self.head: Head | None = None
        self.trailers: list[tuple[bytes, bytes]] = []
        self.complete = False
        self.error: Exception | None = None
        self.keep_alive = False
        """The connection can serve another request, as far as this response is concerned."""
        self._limit = sys.maxsize
        self.on_body = self.body.data.extend
        self._bodyless = method == "HEAD"  # which the parser can't know; it knows 204 and 304
        self.until_close = False
        """The body has no length: it ends when the server closes the connection."""
        self._final = 0
        self._fields: list[tuple[bytes, bytes]] = []
        self._phrase = b""
        self._first = b""
        self._field_count = 0
        self._head_bytes = 0
        self._quiet_bytes = 0
        self._seen = 0
        self._taken = 0
        self._at = 0.0
        self._parser = httptools.HttpResponseParser(self)

    @property
    def over(self) -> bool:
        """Nothing more will come."""
        return self.complete or self.error is not None

    @property
    def received(self) -> int:
        """Body bytes so far, including those that were taken."""
        return self._taken + len(self.body.data)

    def feed(self, data: bytes, at: float) -> None:
        """Parse a chunk that arrived at `at`, in monotonic seconds."""
        self._at = at
        if self.head is None and len(self._first) < _SHOWN:
            self._first += data[:_SHOWN]
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._unparsable(error)
        if self.complete or self.error is not None:
            self._settle()
        body = self.body
        seen = len(body.data)
        if seen == self._seen:
            self._count_quiet(len(data))
        else:
            self._seen = seen
            body.times.append(at)
            body.ends.append(seen)
            self._quiet_bytes = 0
            timeline = self.timeline
            timeline.last_byte = at
            if timeline.first_byte is None:
                timeline.first_byte = at
            if seen > self._limit and self.error is None:
                self._over_limit()

    def eof(self, at: float) -> None:
        """The server closed the connection (or its half of it) in order."""
        if self.over:
            return
        if self.head is not None and self.until_close:
            self.complete = True
            self.timeline.ended = at
        else:
            self.error = ClosedEarly(f"connection closed by the server (FIN) {self._place()}")

    def lost(self, error: BaseException | None) -> None:
        """The connection is gone; `error` is what asyncio says about it."""
        if not self.over:
            self.error = lost(error, self._place())

    def fail(self, error: Exception) -> None:
        """Give up on the response for a reason of our own."""
        if not self.over:
            self.error = error

    def set_limit(self, count: int) -> None:
        """Let going beyond `count` body bytes in `body` be an error, also if it has happened already."""
        self._limit = count
        if len(self.body.data) > count and self.error is None:
            self._over_limit()

    def take(self) -> bytes:
        """Remove and return the body bytes that wait."""
        body = self.body
        data = bytes(body.data)
        self._taken += len(data)
        body.clear()
        self._seen = 0
        return data

    # what httptools calls; on_body is an attribute

    def on_message_begin(self) -> None:
        """Another message starts: the first, the one after a 1xx, or one that nobody asked for."""
        if self.complete:
            self.keep_alive = False

    def on_status(self, phrase: bytes) -> None:
        """(A part of) the status line's phrase."""
        self._phrase += phrase

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header field or, behind the body, a trailer."""
        if self.complete:
            return
        self._head_bytes += len(name) + len(value) + 4
        self._field_count += 1
        target = self._fields if self.head is None else self.trailers
        target.append((name, value))
        if self._head_bytes > MAX_HEAD_BYTES or self._field_count > MAX_FIELDS:
            self._headers_over_limit()

    def on_headers_complete(self) -> None:
        """The blank line behind the header fields."""
        if self.complete:
            return
        status = self._parser.get_status_code()
        version = self._parser.get_http_version()
        if status == 101:
            raise _Unsupported("answered 101 Switching Protocols, which was not asked for")
        if version not in {"1.0", "1.1"}:
            raise _Unsupported(f"answered in HTTP/{version}, not HTTP/1.1")
        if 100 <= status < 200:
            self._phrase = b""
            self._fields.clear()
            return
        self.timeline.headers = self._at
        fields = tuple(self._fields)
        self.head = Head(status=status, phrase=self._phrase, fields=fields, version=version)
        self.keep_alive = self._parser.should_keep_alive()
        self._choose_framing(fields)
        if self._bodyless:
            self._whole()

    def on_message_complete(self) -> None:
        """The end of a message, which is not ours if it was a 1xx."""
        if self.head is not None and not self.over:
            self._whole()

    def _choose_framing(self, fields: Fields) -> None:
        sized = False
        encodings = []
        for name, value in fields:
            lower = name.lower()
            sized = sized or lower == b"content-length"
            if lower == b"transfer-encoding":
                encodings += [token.strip().lower() for token in value.split(b",")]
        if encodings not in ([], [b"chunked"]) and not self._bodyless:
            raise _Unsupported(f"transfer encoding {shown(b', '.join(encodings))} is not supported")
        self.until_close = not sized and not encodings

    def _whole(self) -> None:
        self.complete = True
        self.timeline.ended = self._at
        self._final = len(self.body.data)

    def _settle(self) -> None:
        """Drop what the parser added behind the end, and the parser itself (a reference cycle)."""
        if self.complete and len(self.body.data) > self._final:
            del self.body.data[self._final :]
            self.keep_alive = False
        del self._parser

    def _unparsable(self, error: httptools.HttpParserError | httptools.HttpParserUpgrade) -> None:
        if isinstance(error, httptools.HttpParserCallbackError) and not isinstance(
            error.__context__, _Unsupported
        ):
            raise error
        if self.complete:
            self.keep_alive = False
        elif self.error is None:
            self.error = self._garbled(error)

    def _garbled(self, error: httptools.HttpParserError | httptools.HttpParserUpgrade) -> Garbled:
        reason = error.__context__ if isinstance(error.__context__, _Unsupported) else error
        if isinstance(reason, _Unsupported):
            return Garbled(str(reason))
        if self.head is not None:
            return Garbled(f"not HTTP {self._place()}: {_lowered(str(reason))}")
        if self._first.startswith(b"HTTP/1."):
            return Garbled(f"not HTTP in the response's header: {_lowered(str(reason))}")
        return Garbled(f"not an HTTP/1.1 response: {_guess(self._first)}")

    def _count_quiet(self, count: int) -> None:
        self._quiet_bytes += count
        if self._quiet_bytes > MAX_HEAD_BYTES and not self.over:
            if self.head is None:
                self._headers_over_limit()
            self.error = self.error or Garbled(
                f"over {size(MAX_HEAD_BYTES)} of chunk framing without any data"
            )

    def _headers_over_limit(self) -> None:
        if self.error is None:
            self.error = Garbled(
                f"response header over the limit ({size(MAX_HEAD_BYTES)}, {MAX_FIELDS} fields)"
            )

    def _over_limit(self) -> None:
        self.complete = False
        self.timeline.ended = None
        self.error = Garbled(f"response body over the limit of {size(self._limit)}")

    def _place(self) -> str:
        """Where in the exchange we are, to follow upon a verb."""
        timeline = self.timeline
        used = ""
        if timeline.reused and not self._first:
            used = f" on a reused connection, idle for {timeline.idle or 0.0:.1f} s before"
        if self.head is None:
            sent = "before any response" if timeline.sent is not None else "while the request was being sent"
            return ("within the response's header" if self._first else sent) + used
        return f"after {size(self.received)} of the body{self._announced()}"

    def _announced(self) -> str:
        fields = self.head.fields if self.head is not None else ()
        lengths = [value for name, value in fields if name.lower() == b"content-length"]
        return f" ({size(int(lengths[0]))} announced)" if lengths else ", unfinished"


class _Unsupported(Exception):
    """The response is HTTP, but of a kind that this transport doesn't speak."""


_SHOWN: Final = 64


def _lowered(reason: str) -> str:
    return reason[:1].lower() + reason[1:]


def _guess(first: bytes) -> str:
    """What the first bytes look like."""
    if len(first) >= 9 and first[3] == 4 and first[5:9] == bytes(4):
        return "the server speaks HTTP/2 only there"
    if first.startswith((b"\x15\x03", b"\x16\x03")):
        return "the server speaks TLS there (is it https?)"
    return f"it starts with {shown(first)}"
