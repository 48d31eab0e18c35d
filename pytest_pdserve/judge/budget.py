"""Whether a probe's replies kept their latency budget."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from pytest_pdserve.units import seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

_NAMES = {"ttft": "TTFT", "second_token": "second token", "itl_p99": "ITL p99", "e2e": "E2E"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyBudget:
    """Upper limits in seconds; None is no limit."""

    ttft: float | None = None
    second_token: float | None = None
    itl_p99: float | None = None
    e2e: float | None = None

    def or_else(self, other: LatencyBudget) -> LatencyBudget:
        """This budget, with `other`'s limits where it has none."""
        return LatencyBudget(
            **{
                limit.name: _first(getattr(self, limit.name), getattr(other, limit.name))
                for limit in fields(self)
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """One whole reply's times in seconds; None where it doesn't carry one."""

    ttft: float | None
    second_token: float | None
    itl: tuple[float, ...]
    e2e: float | None
    client_lag: float = 0.0
    """The longest that our own event loop was late meanwhile: all that the client can have added to a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrun:
    """A limit that was not kept. Seconds."""

    limit_name: str
    limit: float
    worst: float
    """The largest value, or the p99 where the limit is for that."""
    over: int
    """How many values were above the limit ..."""
    of: int
    """... of how many."""
    client_may_explain: bool
    """Whether our own lateness may account for every one of them: then the budget is neither kept nor broken."""

    def __str__(self) -> str:
        name = _NAMES[self.limit_name]
        over = f"{self.over} of {self.of} over"
        return f"{name} {seconds(self.worst)}, budget {seconds(self.limit)} ({over})"


def judge_budget(replies: Sequence[Latencies], budget: LatencyBudget) -> tuple[Overrun, ...]:
    """The limits of `budget` that `replies` did not keep, each with the worst value.

    Every reply has to keep ttft, second_token and e2e; itl_p99 is over all gaps of all replies. A client that
    is late makes times longer, never shorter: what was kept is kept, and an overrun counts against the
    deployment only where it is larger than the client's own lag.
    """
    overruns = []
    for name in ("ttft", "second_token", "e2e"):
        pairs = [
            (value, reply.client_lag) for reply in replies if (value := getattr(reply, name)) is not None
        ]
        overruns.append(_overrun(name, getattr(budget, name), pairs))
    overruns.append(_itl_overrun(budget.itl_p99, replies))
    return tuple(overrun for overrun in overruns if overrun is not None)


def _itl_overrun(limit: float | None, replies: Sequence[Latencies]) -> Overrun | None:
    gaps = [(gap, reply.client_lag) for reply in replies for gap in reply.itl]
    if limit is None or not gaps or (p99 := _p99([gap for gap, _ in gaps])) <= limit:
        return None
    return Overrun(
        limit_name="itl_p99",
        limit=limit,
        worst=p99,
        over=sum(gap > limit for gap, _ in gaps),
        of=len(gaps),
        # One late reply may hold the 99th place, and many punctual ones the places below it.
        client_may_explain=_p99([gap - lag for gap, lag in gaps]) <= limit,
    )


def _overrun(name: str, limit: float | None, values: Sequence[tuple[float, float]]) -> Overrun | None:
    if limit is None:
        return None
    over = [(value, lag) for value, lag in values if value > limit]
    if not over:
        return None
    return Overrun(
        limit_name=name,
        limit=limit,
        worst=max(value for value, _ in over),
        over=len(over),
        of=len(values),
        client_may_explain=all(value - lag <= limit for value, lag in over),
    )


def _p99(values: Sequence[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(0.99 * len(values)))]


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)
