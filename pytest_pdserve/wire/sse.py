"""Server-sent events, read from a stamped body.

After https://html.spec.whatwg.org/multipage/server-sent-events.html (sections 9.2.5 and 9.2.6), with two differences
that serve finding faults: invalid UTF-8 is reported instead of replaced, and what a stream leaves unterminated
at its end is kept (`EventStream.rest`).
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from pytest_pdserve.wire.words import shown, size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_pdserve.wire.stamped import Stamped

MAX_REST: Final = 500
"""Most characters of `EventStream.rest`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SseLimits:
    """How large a stream and its parts may be, in bytes."""

    line: int = 4 * 1024 * 1024
    event: int = 8 * 1024 * 1024
    total: int = 64 * 1024 * 1024


_DEFAULT_LIMITS: Final = SseLimits()


class Event(NamedTuple):
    """One dispatched event. (A tuple because there may be a million: it costs a fifth of a frozen dataclass.)"""

    data: str
    at: float
    """Arrival, in monotonic seconds, of the chunk in which the event's final blank line ended."""
    name: str = "message"
    id: str = ""
    """The last event id so far, which an event without one inherits."""


@dataclass(frozen=True, slots=True)
class EventStream:
    """The events of one body."""

    events: list[Event]
    rest: str
    """An unterminated event at the end, cut to `MAX_REST` characters; empty when there is none."""
    error: str | None
    """Where and how the body is not the protocol or is over a limit; None when it is fine."""


def read_events(body: Stamped, *, limits: SseLimits = _DEFAULT_LIMITS) -> EventStream:
    """All events of `body`, up to the first error."""
    reader = _Reader(body, limits)
    try:
        reader.read()
    except _ProtocolError as error:
        return EventStream(reader.events, reader.rest, str(error))
    return EventStream(reader.events, reader.rest, None)


class _ProtocolError(Exception):
    """The body is not the protocol, or is over a limit."""


class _Reader:
    """Reads one body; `events` grows as it goes."""

    def __init__(self, body: Stamped, limits: SseLimits) -> None:
        self.events: list[Event] = []
        self._body = body
        self._data = bytes(body.data)
        self._limits = limits
        self._last_id = ""
        self._dispatched = 0
        """Offset behind the last blank line."""

    @property
    def rest(self) -> str:
        """What is left behind the last blank line, if it is more than comments."""
        tail = self._data[self._dispatched :]
        lines = _LINE_END.split(tail[: 4 * MAX_REST])
        if all(not line or line.startswith(b":") for line in lines):
            return ""
        return tail[: 4 * MAX_REST].decode("utf-8", "replace")[:MAX_REST]

    def read(self) -> None:
        """Read everything. Raises _ProtocolError."""
        if len(self._data) > self._limits.total:
            raise _ProtocolError(f"event stream over the limit of {size(self._limits.total)}")
        self._dispatched = len(BOM_UTF8) if self._data.startswith(BOM_UTF8) else 0
        ends = self._data.count(b"\n")
        carriage_returns = self._data.count(b"\r")
        if not carriage_returns:
            self._read_blocks(b"\n")
        elif carriage_returns == ends == self._data.count(b"\r\n"):
            self._read_blocks(b"\r\n")
        else:
            self._read_lines()
        self._check_size(len(self._data) - self._dispatched, self._dispatched)

    def _read_blocks(self, eol: bytes) -> None:
        """The usual stream, in which all lines end alike: cut at blank lines, and read simple events as a whole."""
        width = len(eol)
        times, chunk_ends = self._body.times, self._body.ends
        chunk = 0
        end = self._dispatched
        largest = min(self._limits.event, self._limits.line)
        append = self.events.append
        *blocks, rest = self._data[end:].split(eol * 2)
        for block in blocks:
            start = end
            end += len(block) + 2 * width
            while chunk_ends[chunk] < end:
                chunk += 1
            if block.startswith(b"data: ") and eol not in block and len(block) <= largest:
                try:
                    append(Event(block[6:].decode(), times[chunk], "message", self._last_id))
                except UnicodeDecodeError as error:
                    raise self._not_utf8(block, start, error.start + 6) from None
            elif block:
                self._read_block(block.split(eol), start, width, times[chunk])
            self._dispatched = end
        while rest.startswith(eol):
            rest = rest[width:]
            self._dispatched += width

    def _read_lines(self) -> None:
        """Any stream: lines that end with LF, CR or CRLF, each as it likes."""
        lines: list[bytes] = []
        start = self._dispatched
        for line, end in _lines(self._data, start):
            if line:
                lines.append(line)
                continue
            self._read_block(lines, start, 1, self._body.time_of(end - 1))
            lines = []
            start = self._dispatched = end

    def _read_block(self, lines: list[bytes], start: int, width: int, at: float) -> None:
        """Dispatch the event that `lines`, found at offset `start`, make, if they make one."""
        name = ""
        data: list[str] = []
        self._check_size(sum(map(len, lines)), start)
        for line in lines:
            if len(line) > self._limits.line:
                raise _ProtocolError(f"line over the limit of {size(self._limits.line)} {self._place(start)}")
            field, value = self._field(line, start)
            start += len(line) + width
            if field == "data":
                data.append(value)
            elif field == "event":
                name = value
            elif field == "id" and "\0" not in value:
                self._last_id = value
        if data:
            self.events.append(Event("\n".join(data), at, name or "message", self._last_id))

    def _field(self, line: bytes, start: int) -> tuple[str, str]:
        try:
            name, _, value = line.decode().partition(":")
        except UnicodeDecodeError as error:
            raise self._not_utf8(line, start, error.start) from None
        return name, value.removeprefix(" ")

    def _not_utf8(self, line: bytes, start: int, wrong: int) -> _ProtocolError:
        place = self._place(start)
        return _ProtocolError(
            f"not UTF-8 at byte {start + wrong:,} ({shown(line[wrong : wrong + 4])}) {place}"
        )

    def _check_size(self, count: int, start: int) -> None:
        if count > self._limits.event:
            raise _ProtocolError(f"event over the limit of {size(self._limits.event)} {self._place(start)}")

    def _place(self, offset: int) -> str:
        return f"in the event at byte {offset:,}, behind {len(self.events):,} whole ones"


_LINE_END: Final = re.compile(rb"\r\n|\r|\n")


def _lines(data: bytes, start: int) -> Iterator[tuple[bytes, int]]:
    """Every terminated line from `start` on, with the offset behind its end."""
    for match in _LINE_END.finditer(data, start):
        yield data[start : match.start()], match.end()
        start = match.end()
