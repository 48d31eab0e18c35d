"""Exchanges made by hand: from raw captures, or from pieces with their arrival times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_pdserve.chat import ChatRequest, chat_request, read_reply
from pytest_pdserve.wire import Ending, Exchange, Outcome, Stamped, Timeline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_pdserve.chat import Reply

CAPTURES = Path(__file__).parents[1] / "data" / "captures"
START = 1000.0
"""When every exchange made here began, in monotonic seconds."""
SSE = "text/event-stream; charset=utf-8"


def asked(*, stream: bool = True, **parameters: Any) -> ChatRequest:
    return chat_request("m", "hi", max_tokens=16, temperature=0.0, stream=stream, **parameters)


def exchange_of(
    pieces: bytes | Sequence[tuple[float, bytes]],
    *,
    status: int | None = 200,
    kind: str = SSE,
    outcome: Outcome | None = None,
    reason: str = "",
    headers: Sequence[tuple[str, str]] = (),
    trailers: Sequence[tuple[str, str]] = (),
) -> Exchange:
    """`pieces` are the body's chunks, each with its arrival in seconds after the start."""
    body = Stamped()
    for at, data in [(0.5, pieces)] if isinstance(pieces, bytes) else pieces:
        body.append(START + at, data)
    outcome = outcome or (Outcome.COMPLETED if status is not None and status < 300 else Outcome.REFUSED)
    whole = outcome in (Outcome.COMPLETED, Outcome.REFUSED)
    timeline = Timeline(
        started=START,
        sent=START + 0.1,
        headers=START + 0.2 if status is not None else None,
        first_byte=body.times[0] if body else None,
        last_byte=body.times[-1] if body else None,
        ended=START + 9.0 if whole else None,
    )
    return Exchange(
        method="POST",
        url="http://router:30001/v1/chat/completions",
        outcome=outcome,
        reason=reason or ("" if outcome is Outcome.COMPLETED else f"{status} Something"),
        phase=timeline.phase,
        timeline=timeline,
        status=status,
        headers=(("content-type", kind), *headers) if status is not None else (),
        body=body,
        ending=Ending.COMPLETE if whole else Ending.FIN,
        trailers=tuple(trailers),
    )


def from_raw(raw: bytes, *, outcome: Outcome | None = None, reason: str = "") -> Exchange:
    """The exchange that a recorded head and body were; each event (or the whole body) a chunk, 0.1 s apart."""
    head, _, body = raw.partition(b"\r\n\r\n")
    status_line, *fields = head.decode("latin-1").split("\r\n")
    headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in fields)]
    kind = next((value for name, value in headers if name == "content-type"), "")
    blocks = body.split(b"\n\n")
    chunks = [block + b"\n\n" for block in blocks[:-1]] + blocks[-1:]
    return exchange_of(
        [(0.5 + 0.1 * number, chunk) for number, chunk in enumerate(chunks)],
        status=int(status_line.split()[1]),
        kind=kind,
        outcome=outcome,
        reason=reason or ("" if status_line.split()[1] == "200" else status_line.partition(" ")[2]),
        headers=headers,
    )


def capture(name: str) -> bytes:
    """A file of one recorded answer, without curl's line at its end."""
    raw = (CAPTURES / name).read_bytes()
    return raw.partition(b"\n[curl ")[0]


def section(name: str, title: str) -> bytes:
    """One answer, with its head, from a file of several, each under a line `### title`."""
    _, _, rest = (CAPTURES / name).read_bytes().partition(f"### {title}\n".encode())
    assert rest, f"no section {title!r} in {name}"
    return rest.partition(b"\n### ")[0]


def sse(*events: object) -> bytes:
    """Server-sent events; texts as they are, anything else as JSON."""
    return b"".join(
        b"data: " + (event.encode() if isinstance(event, str) else json.dumps(event).encode()) + b"\n\n"
        for event in events
    )


def delta(index: int = 0, finish: str | None = None, **said: Any) -> dict[str, Any]:
    return {"model": "m", "choices": [{"index": index, "delta": said, "finish_reason": finish}]}


def read(*events: object, stream: bool = True, outcome: Outcome | None = None, **parameters: Any) -> Reply:
    """The reply to a stream of `events`, one chunk each: the first after 1 s, then every 0.1 s."""
    pieces = [(1 + 0.1 * number, sse(event)) for number, event in enumerate(events)]
    return read_reply(asked(stream=stream, **parameters), exchange_of(pieces, outcome=outcome))


def read_body(
    body: object, *, kind: str = "application/json", status: int = 200, stream: bool = False
) -> Reply:
    """The reply to one body; bytes as they are, anything else as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return read_reply(asked(stream=stream), exchange_of(data, kind=kind, status=status))
