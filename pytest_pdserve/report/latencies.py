"""The key latencies of a run, over all its whole streamed replies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_pdserve.judge import LatencyBudget
from pytest_pdserve.wire import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_pdserve.judge import ProbeRecord, ReplyRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyRow:
    """One latency over many replies. Seconds."""

    name: str
    p50: float
    p99: float
    count: int
    """How many replies carry it."""
    budget: float | None = None


def latency_rows(probes: Iterable[ProbeRecord], budget: LatencyBudget | None = None) -> list[LatencyRow]:
    """TTFT, second token, ITL and E2E, as far as any reply carries them, with `budget`'s limits.

    A record keeps two numbers of each reply's ITL: the row's p50 is the middle one of the replies' own p50s,
    its p99 the p99 of the replies' own p99s.
    """
    limits = budget or LatencyBudget()
    whole = [
        reply
        for probe in probes
        for reply in probe.replies
        if reply.streamed and reply.outcome == Outcome.COMPLETED
    ]
    columns = (
        ("TTFT", "ttft", "ttft", limits.ttft),
        ("second token", "second_token", "second_token", limits.second_token),
        ("ITL", "itl_p50", "itl_p99", limits.itl_p99),
        ("E2E", "e2e", "e2e", limits.e2e),
    )
    rows = []
    for name, usual, slow, limit in columns:
        middle, high = _values(whole, usual), _values(whole, slow)
        if middle and high:
            p50, p99 = percentile(middle, 0.5), percentile(high, 0.99)
            rows.append(LatencyRow(name=name, p50=p50, p99=p99, count=len(high), budget=limit))
    return rows


def percentile(values: Sequence[float], share: float) -> float:
    """The first of `values` (at least one), in order, that a `share` (0 to 1) of them come before."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _values(replies: Sequence[ReplyRecord], name: str) -> list[float]:
    return [value for reply in replies if (value := getattr(reply, name)) is not None]
