"""Whether latencies after a restart come down as a cold start's would, or the cold start is an excuse."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

STEADY: Final = 3
"""How many answers in a row have to agree."""
NOISE_RATIO: Final = 1.5
NOISE_SECONDS: Final = 0.05


class Course(StrEnum):
    """The course of the latencies so far."""

    SETTLED = "settled"
    """The last three agree and keep the budget."""
    FALLING = "falling"
    """Still above the budget or too few, and never slower than before: consistent with warm-up, not accepted."""
    NOT_WARM_UP = "not warm-up"
    """A later answer was slower than an earlier one, beyond noise, and above the budget."""
    HUNG = "hung"
    """An answer did not come within its deadline."""
    UNSTEADY = "unsteady"
    """Within the budget, but the last three don't agree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle:
    """The judgement of one series. Positions count from 1; seconds."""

    course: Course
    steady: float | None = None
    """The median of the last three; None unless they agree and keep the budget."""
    cold_penalty: float | None = None
    """What the answers before cost beyond the steady latency, together; None where `steady` is."""
    slower_at: int | None = None
    """The first answer that falsifies the warm-up."""
    hung_at: int | None = None

    @property
    def cold_start_falsified(self) -> bool:
        """Whether the slowness can't be explained as warm-up."""
        return self.slower_at is not None


def judge_settle(latencies: Sequence[float | None], *, budget: float) -> Settle:
    """Judge latencies (seconds, in order; None for one that hung) against `budget`, the steady limit in seconds."""
    slower_at = _slower_at(latencies, budget)
    hung_at = next((place for place, latency in enumerate(latencies, 1) if latency is None), None)
    if hung_at is not None:
        return Settle(course=Course.HUNG, slower_at=slower_at, hung_at=hung_at)
    answered = [latency for latency in latencies if latency is not None]
    last = answered[-STEADY:]
    in_budget = len(last) == STEADY and max(last) <= budget
    if in_budget and not slower(max(last), than=min(last)):
        steady = median(last)
        before = answered[:-STEADY]
        penalty = sum(max(latency - steady, 0.0) for latency in before)
        course = Course.SETTLED if slower_at is None else Course.NOT_WARM_UP
        return Settle(course=course, steady=steady, cold_penalty=penalty, slower_at=slower_at)
    if slower_at is not None:
        return Settle(course=Course.NOT_WARM_UP, slower_at=slower_at)
    return Settle(course=Course.UNSTEADY if in_budget else Course.FALLING)


def slower(latency: float, *, than: float) -> bool:
    """Whether `latency` is above `than` by more than noise: half as much again and 50 ms on top."""
    return latency > NOISE_RATIO * than + NOISE_SECONDS


def _slower_at(latencies: Sequence[float | None], budget: float) -> int | None:
    fastest = float("inf")
    for place, latency in enumerate(latencies, start=1):
        if latency is None:
            continue
        if latency > budget and slower(latency, than=fastest):
            return place
        fastest = min(fastest, latency)
    return None
