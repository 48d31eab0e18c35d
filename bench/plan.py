"""What the server sends and the clients expect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

STAMP_KEY: Final = b'"sent": '
"""In an event's JSON, what stands before the server's `time.monotonic()`, which ends at the next comma."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One round: `streams` at once, each of `events` at `rate` per second."""

    streams: int
    events: int
    rate: float

    @property
    def total(self) -> int:
        """Events of all streams."""
        return self.streams * self.events

    @property
    def path(self) -> str:
        """The URL's path that asks the server for one such stream."""
        return f"/stream/{self.events}/{self.rate:g}"


@dataclass(frozen=True, slots=True)
class Sample:
    """What one client measured in one round."""

    cpu_us: float
    """CPU time of the client's process per event, in microseconds."""
    delay_p50_ms: float
    """Median delay from the server's stamp in an event to the client's, in milliseconds."""
    delay_p99_ms: float


def percentile(ordered: list[float], share: float) -> float:
    """The value below which `share` of the ordered values lie."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def sample(cpu_seconds: float, delays: list[float], expected: int) -> Sample:
    """Turn a round's raw numbers into a `Sample`. Raises RuntimeError if events are missing."""
    if len(delays) != expected:
        raise RuntimeError(f"{len(delays)} events instead of {expected}")
    delays.sort()
    return Sample(
        cpu_us=cpu_seconds / expected * 1e6,
        delay_p50_ms=percentile(delays, 0.50) * 1e3,
        delay_p99_ms=percentile(delays, 0.99) * 1e3,
    )


def sent_at(event: bytes) -> float:
    """The server's stamp in an event."""
    start = event.index(STAMP_KEY) + len(STAMP_KEY)
    return float(event[start : event.index(b",", start)])
