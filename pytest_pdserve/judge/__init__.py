"""Numbers to judgements: pure functions of data, no I/O."""

from pytest_pdserve.judge.budget import Latencies, LatencyBudget, Overrun, judge_budget
from pytest_pdserve.judge.probe import (
    AGAINST,
    OWN_STAGE,
    Finding,
    ProbeOutcome,
    ProbeRecord,
    ReplyRecord,
    Sureness,
)
from pytest_pdserve.judge.settle import Course, Settle, judge_settle, slower
from pytest_pdserve.judge.verdict import Verdict, VerdictOutcome, judge_run

__all__ = [
    "AGAINST",
    "OWN_STAGE",
    "Course",
    "Finding",
    "Latencies",
    "LatencyBudget",
    "Overrun",
    "ProbeOutcome",
    "ProbeRecord",
    "ReplyRecord",
    "Settle",
    "Sureness",
    "Verdict",
    "VerdictOutcome",
    "judge_budget",
    "judge_run",
    "judge_settle",
    "slower",
]
