"""What an exchange was doing when its deadline passed, in one line."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from pytest_pdserve.wire.timeline import Phase
from pytest_pdserve.wire.words import counted, seconds, size

if TYPE_CHECKING:
    from pytest_pdserve.wire.stamped import Stamped
    from pytest_pdserve.wire.timeline import Timeline

_LONG_SILENCE: Final = 1.0
"""A silence of less than so many seconds at the end still counts as streaming."""


def hang_reason(timeline: Timeline, body: Stamped, now: float) -> str:
    """For people: what was reached when, and since when nothing has come. `body` is the one on the wire."""
    waited = now - timeline.started
    match timeline.phase:
        case Phase.RESOLVE if timeline.admitted is None:
            return f"no connection became free for {seconds(waited)} (the pool's limit)"
        case Phase.RESOLVE:
            return f"the host's name was not resolved within {seconds(waited)}"
        case Phase.CONNECT:
            return f"no answer to the TCP connection attempt for {seconds(_since(timeline.resolved, now))}"
        case Phase.TLS:
            return f"connected after {_after(timeline, timeline.connected)}, then no TLS for " + seconds(
                _since(timeline.connected, now)
            )
        case Phase.SEND:
            return f"the server did not take the whole request within {seconds(waited)}"
        case Phase.HEADERS:
            return f"sent after {_after(timeline, timeline.sent)}, then nothing for " + seconds(
                _since(timeline.sent, now)
            )
        case Phase.FIRST_BYTE:
            return f"headers after {_after(timeline, timeline.headers)}, then nothing for " + seconds(
                _since(timeline.headers, now)
            )
        case _:
            return _in_body(timeline, body, now)


def _in_body(timeline: Timeline, body: Stamped, now: float) -> str:
    times = body.times
    amount = f"{size(len(body))} in {counted(body.chunks, 'chunk')}"
    silence = now - times[-1]
    longest_gap = max(after - before for before, after in pairwise((timeline.headers or times[0], *times)))
    if silence >= _LONG_SILENCE and silence > longest_gap:
        return (
            f"headers after {_after(timeline, timeline.headers)}, {amount} until "
            f"{_after(timeline, times[-1])}, then nothing for {seconds(silence)}"
        )
    waited = seconds(now - timeline.started)
    return f"still streaming after {waited}: {amount}, the last {seconds(silence)} ago"


def _after(timeline: Timeline, at: float | None) -> str:
    return seconds((at or timeline.started) - timeline.started)


def _since(at: float | None, now: float) -> float:
    return now - (at or now)
