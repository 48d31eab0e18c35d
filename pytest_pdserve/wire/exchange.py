"""One request and what came back: exactly one outcome, and never an exception for what a server does."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from enum import StrEnum
from http import HTTPStatus
from time import monotonic
from typing import TYPE_CHECKING, Final, Literal

import httpx

from pytest_pdserve.wire.decode import ACCEPTED, decode
from pytest_pdserve.wire.failures import Ending, Garbled, ending_of
from pytest_pdserve.wire.hang import hang_reason
from pytest_pdserve.wire.incoming import Incoming
from pytest_pdserve.wire.stamped import Stamped
from pytest_pdserve.wire.timeline import Phase, Timeline
from pytest_pdserve.wire.words import shown

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

MAX_BYTES: Final = 16 * 1024 * 1024
WHILE_HUNG_SECONDS: Final = 10.0
"""How long `while_hung` may take."""
_CLEAN_UP_SECONDS: Final = 1.0


class Outcome(StrEnum):
    """How an exchange ended, as far as HTTP can tell. The first that fits, from top to bottom."""

    HUNG = "hung"
    """The deadline passed."""
    REFUSED = "refused"
    """A 4xx or 5xx status, whatever became of its body."""
    GARBLED = "garbled"
    """What came back is not the protocol, not decodable, too large, or a redirect."""
    BROKEN = "broken"
    """The connection failed, or ended before the message did."""
    COMPLETED = "completed"
    """A whole message with a 2xx status."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One request and what came back."""

    method: str
    url: str
    outcome: Outcome
    reason: str
    """One line for people; empty when completed."""
    phase: Phase
    """The phase that was being waited for at the end; `DONE` when the whole message was there."""
    timeline: Timeline
    status: int | None
    headers: tuple[tuple[str, str], ...]
    """The response's header fields in order, as received."""
    body: Stamped
    """The response's body, content-decoded, at most `max_bytes`; what had arrived, if it isn't whole."""
    ending: Ending
    trailers: tuple[tuple[str, str], ...]

    def header(self, name: str) -> str | None:
        """The response's first header field of that name, in any case of letters."""
        wanted = name.lower()
        return next((value for field, value in self.headers if field.lower() == wanted), None)


async def exchange(
    client: httpx.AsyncClient,
    request: httpx.Request,
    *,
    deadline: float,
    connection: Literal["fresh", "reuse"] = "reuse",
    max_bytes: int = MAX_BYTES,
    while_hung: Callable[[Exchange], Awaitable[None]] | None = None,
) -> Exchange:
    """Send `request` once and gather what comes back, for at most `deadline` seconds from now.

    Whatever the server or the network does becomes an `Exchange`; only programming errors are raised: a request that
    is not valid HTTP (httpx.LocalProtocolError, httpx.UnsupportedProtocol), a client that is not over our transport
    (TypeError), and whatever the request's own body stream or `while_hung` raises.

    When the deadline passes, `while_hung` is awaited with the exchange that will be returned while the request is
    still open, and cancelled after 10 seconds; then the connection is closed. What arrives meanwhile changes nothing.
    """
    timeline = Timeline(started=monotonic())
    request.extensions = {
        **request.extensions,
        "timeline": timeline,
        "connection": connection,
        "timeout": {},
    }
    _accept_only_decodable(request)
    attempt = _Attempt(client, request, timeline, max_bytes)
    task = asyncio.create_task(attempt.run())
    try:
        done, _ = await asyncio.wait({task}, timeout=deadline)
        if done:
            task.result()
            return attempt.ended()
        hung = attempt.hung()
        if while_hung is not None:
            await _bounded(while_hung(hung))
        return hung
    finally:
        if task.cancel():
            await asyncio.wait({task}, timeout=_CLEAN_UP_SECONDS)


class _Attempt:
    """The sending of one request, and what is known of the response at any moment."""

    def __init__(
        self, client: httpx.AsyncClient, request: httpx.Request, timeline: Timeline, max_bytes: int
    ) -> None:
        self._client = client
        self._request = request
        self._timeline = timeline
        self._max_bytes = max_bytes
        self._incoming: Incoming | None = None
        self._error: httpx.TransportError | None = None

    async def run(self) -> None:
        """Send, and gather the whole response. What the server or network does is kept, not raised."""
        try:
            response = await self._client.send(self._request, stream=True, follow_redirects=False)
            try:
                self._incoming = _incoming_of(response)
                await self._incoming.collect(self._max_bytes)
            finally:
                await response.aclose()
        except (httpx.LocalProtocolError, httpx.UnsupportedProtocol):
            raise
        except httpx.TransportError as error:
            self._error = error

    def ended(self) -> Exchange:
        """The exchange, now that it is over."""
        error = self._error
        status = self._status
        decoded = decode(self._raw_body, self._encoding, max_bytes=self._max_bytes, whole=error is None)
        problem = str(error) if error is not None else decoded.problem
        if status is not None and 400 <= status < 600:
            reason = _status_line(status, self._phrase) + (f"; {problem}" if problem else "")
            return self._exchange(Outcome.REFUSED, reason, decoded.body)
        if isinstance(error, httpx.TransportError) and not isinstance(error, Garbled):
            return self._exchange(Outcome.BROKEN, str(error), decoded.body)
        problem = problem or self._unfit(status)
        if problem is not None:
            return self._exchange(Outcome.GARBLED, problem, decoded.body)
        return self._exchange(Outcome.COMPLETED, "", decoded.body)

    def hung(self) -> Exchange:
        """The exchange as it is at its deadline, which doesn't change any more."""
        raw = self._raw_body
        reason = hang_reason(self._timeline, raw, monotonic())
        if self._status is not None and self._status >= 300:
            reason = f"{_status_line(self._status, self._phrase)}; {reason}"
        body = decode(raw, self._encoding, max_bytes=self._max_bytes, whole=False).body
        return self._exchange(Outcome.HUNG, reason, body.copy())

    def _exchange(self, outcome: Outcome, reason: str, body: Stamped) -> Exchange:
        head = self._incoming.reader.head if self._incoming is not None else None
        return Exchange(
            method=self._request.method,
            url=str(self._request.url),
            outcome=outcome,
            reason=reason,
            phase=self._timeline.phase,
            timeline=replace(self._timeline),
            status=self._status,
            headers=_text(head.fields) if head is not None else (),
            body=body,
            ending=self._ending(outcome),
            trailers=_text(self._incoming.trailers) if self._incoming is not None else (),
        )

    def _ending(self, outcome: Outcome) -> Ending:
        if outcome is Outcome.HUNG:
            return Ending.OPEN if self._timeline.connected or self._timeline.reused else Ending.NONE
        if self._error is not None:
            return ending_of(self._error)
        by_closing = self._incoming is not None and self._incoming.reader.until_close
        return Ending.FIN if by_closing else Ending.COMPLETE

    def _unfit(self, status: int | None) -> str | None:
        """What is wrong with the status of a whole message that is no refusal."""
        if status is not None and 200 <= status < 300:
            return None
        if status is not None and 300 <= status < 400:
            # Without its query, which is where keys stand: what is cut for display can't be masked any more.
            location = self._field(b"location").partition(b"?")[0]
            where = f"a redirect to {shown(location)}, not followed" if location else "not asked for"
            return f"{_status_line(status, self._phrase)}: {where}"
        return f"status {status} does not exist"

    @property
    def _status(self) -> int | None:
        head = self._incoming.reader.head if self._incoming is not None else None
        return head.status if head is not None else None

    @property
    def _phrase(self) -> bytes:
        head = self._incoming.reader.head if self._incoming is not None else None
        return head.phrase if head is not None else b""

    @property
    def _raw_body(self) -> Stamped:
        return self._incoming.body if self._incoming is not None else Stamped()

    @property
    def _encoding(self) -> str:
        return self._field(b"content-encoding").decode("latin-1")

    def _field(self, name: bytes) -> bytes:
        """All header fields of that name, joined."""
        head = self._incoming.reader.head if self._incoming is not None else None
        fields = head.fields if head is not None else ()
        return b", ".join(value for field, value in fields if field.lower() == name)


async def _bounded(gathering: Awaitable[None]) -> None:
    try:
        async with asyncio.timeout(WHILE_HUNG_SECONDS) as bound:
            await gathering
    except TimeoutError:
        if not bound.expired():
            raise


def _incoming_of(response: httpx.Response) -> Incoming:
    incoming = response.extensions.get("incoming")
    if not isinstance(incoming, Incoming):
        raise TypeError("exchange() needs a client made with transport=Transport()")
    return incoming


def _accept_only_decodable(request: httpx.Request) -> None:
    """httpx also offers brotli and zstandard wherever their packages happen to be installed."""
    offered = {token.strip() for token in request.headers.get("accept-encoding", "").lower().split(",")}
    if offered & {"br", "zstd"}:
        request.headers["accept-encoding"] = ACCEPTED


def _status_line(status: int, phrase: bytes) -> str:
    if phrase:
        return f"{status} {shown(phrase)[1:-1]}"
    known = {entry.value: entry.phrase for entry in HTTPStatus}
    return f"{status} {known.get(status, '')}".strip()


def _text(fields: tuple[tuple[bytes, bytes], ...]) -> tuple[tuple[str, str], ...]:
    return tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in fields)
