"""From all probes to one verdict."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from pytest_pdserve.judge.probe import AGAINST, ProbeOutcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_pdserve.judge.probe import ProbeRecord


class VerdictOutcome(StrEnum):
    """Whether the deployment may take traffic."""

    ACCEPTED = "ACCEPTED"
    REJECTED = "REJECTED"
    INCONCLUSIVE = "INCONCLUSIVE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The run's answer; `reasons` are lines for people, empty only when accepted."""

    outcome: VerdictOutcome
    reasons: tuple[str, ...] = ()


def judge_run(
    probes: Sequence[ProbeRecord], *, unreachable: str | None = None, incomplete: str | None = None
) -> Verdict:
    """Judge a run.

    `unreachable` says why nothing could be sent to the entry at all, `incomplete` why the run ended early.
    An acceptance needs whole answers through the entry, nothing against them, and nothing undecided: an
    incomplete run is inconclusive whatever it had found, and its reasons say what that was.
    """
    against = _counted(probes, *AGAINST)
    if incomplete:
        so_far = [f"by then: {against}"] if against else []
        return Verdict(outcome=VerdictOutcome.INCONCLUSIVE, reasons=(f"incomplete: {incomplete}", *so_far))
    if unreachable or against:
        return Verdict(
            outcome=VerdictOutcome.REJECTED, reasons=tuple(line for line in (unreachable, against) if line)
        )
    undecided = tuple(_undecided(probes))
    return Verdict(
        outcome=VerdictOutcome.INCONCLUSIVE if undecided else VerdictOutcome.ACCEPTED, reasons=undecided
    )


def _undecided(probes: Sequence[ProbeRecord]) -> list[str]:
    """What keeps a run without findings from being an acceptance."""
    reasons = []
    if broke := _counted(probes, ProbeOutcome.BROKE):
        reasons.append(f"{broke}: what they would have measured is unknown")
    reasons += [
        f"{probe.id}: {probe.reason}" for probe in probes if probe.outcome is ProbeOutcome.INCONCLUSIVE
    ]
    passed = [probe for probe in probes if probe.outcome is ProbeOutcome.PASSED]
    if not any(probe.answered for probe in passed):
        reasons.append("no probe that passed got an answer through the entry")
    elif not any(probe.checks_content for probe in passed):
        checking = [probe.reason for probe in probes if probe.checks_content and probe.reason]
        why = checking[0] if checking else "no probe that checks what an answer says was run"
        reasons.append(f"nothing shows that answers are right: {why}")
    if waiting := [probe for probe in probes if probe.outcome is ProbeOutcome.NOT_RUN]:
        reasons.append(f"{len(waiting)} not run: {waiting[0].reason}")
    return reasons


def _counted(probes: Sequence[ProbeRecord], *outcomes: ProbeOutcome) -> str:
    """`1 hung, 2 failed`; empty when there is none."""
    counts = Counter(probe.outcome for probe in probes if probe.outcome in outcomes)
    return ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items(), reverse=True))
