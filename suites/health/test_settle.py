"""After a restart, answers get fast and stay fast: otherwise "cold start" is an excuse."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_pdserve.deployment import Inconclusive, ProbeFailure, ProbeHang
from pytest_pdserve.judge import Course, LatencyBudget, judge_settle
from pytest_pdserve.judge.attribution import Kind
from pytest_pdserve.wire import Outcome

if TYPE_CHECKING:
    from pytest_pdserve.chat import Reply
    from pytest_pdserve.deployment import Deployment
    from pytest_pdserve.judge import Settle

STEADY_BUDGET = 5.0
"""Seconds for a warm 8-token answer, where pdserve.toml sets no e2e budget."""
LONGEST = 120.0
"""Seconds for one answer: a cold start may need 38 s (UCX's first connection, sglang pull request 28737)."""
MOST_ANSWERS = 12


@pytest.mark.settles
@pytest.mark.timeout(310, func_only=True)
@pytest.mark.sends(requests=MOST_ANSWERS, prompt_tokens=MOST_ANSWERS * 200, output_tokens=MOST_ANSWERS * 8)
def test_answers_settle(pd: Deployment) -> None:
    """Small answers in a row: the last three agree and keep the budget, and none is slower than one before.

    The series 17.9 s, 106.4 s, 10.5 s, never was once called a cold start.
    """
    budget = pd.budget.e2e or STEADY_BUDGET
    # The first answers may be slow: here the course is judged, not each answer.
    pd.budget = LatencyBudget()
    latencies: list[float | None] = []
    while len(latencies) < MOST_ANSWERS:
        reply = pd.attempt(
            f"Say something about the number {pd.source.randrange(10**6)}.", max_tokens=8, deadline=LONGEST
        )
        if reply.outcome is not Outcome.HUNG:
            pd.whole(reply)
        latencies.append(reply.e2e if reply.completed else None)
        settle = judge_settle(latencies, budget=budget)
        if settle.course is Course.HUNG or settle.steady is not None:
            break
    _report(pd, reply, latencies, settle, budget)


def _report(
    pd: Deployment, reply: Reply, latencies: list[float | None], settle: Settle, budget: float
) -> None:
    course = ", ".join("never" if latency is None else f"{latency:.2f} s" for latency in latencies)
    evidence = [f"answers took {course}"] if len(latencies) > 1 else []
    if settle.slower_at is not None:
        evidence.append(f"not a cold start: answer {settle.slower_at} took longer than one before it")
    if evidence:
        evidence.append(f"a warm answer has {budget:g} s")
    if settle.course is Course.HUNG:
        what = f"answer {settle.hung_at} hung: {reply.reason}"
        raise ProbeHang(pd.finding(what, reply, *evidence))
    if settle.course is Course.NOT_WARM_UP:
        what = f"answer {settle.slower_at} was slower than one before it and above {budget:g} s"
        raise ProbeFailure(pd.finding(what, pd.replies[settle.slower_at - 1], *evidence, kind=Kind.SLOW))
    if settle.course is Course.FALLING:
        what = f"answers are still above {budget:g} s after {len(latencies)}"
        never = "they never rose: consistent with a warm-up"
        raise ProbeFailure(pd.finding(what, reply, *evidence, never, kind=Kind.SLOW))
    if settle.course is Course.UNSTEADY:
        raise Inconclusive(f"within {budget:g} s, but the last answers don't agree: {course}")
