"""What people have to know of a run's probes: the counts, what is wrong, and what was not covered."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pytest_pdserve.judge import Finding, ProbeOutcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_pdserve.judge import ProbeRecord

WORST_FIRST: Final = (
    ProbeOutcome.HUNG,
    ProbeOutcome.FAILED,
    ProbeOutcome.BROKE,
    ProbeOutcome.INCONCLUSIVE,
    ProbeOutcome.PASSED,
    ProbeOutcome.SKIPPED,
    ProbeOutcome.NOT_RUN,
)
_TROUBLE: Final = WORST_FIRST[:3]
_GAP: Final = (ProbeOutcome.INCONCLUSIVE, ProbeOutcome.NOT_RUN, ProbeOutcome.SKIPPED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """One finding and the probe that made it."""

    outcome: ProbeOutcome
    probe: str
    """pytest's node id."""
    finding: Finding

    @property
    def layer(self) -> str:
        """Where it lies; empty for a probe that broke, which says nothing of the deployment."""
        return "" if self.outcome is ProbeOutcome.BROKE else where(self.finding)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Probes that decided nothing, for one and the same reason."""

    outcome: ProbeOutcome
    reason: str
    probes: tuple[str, ...]


def counts(probes: Sequence[ProbeRecord]) -> str:
    """`1 hung, 2 failed, 41 passed`, worst first; `nothing probed` without any."""
    number = Counter(probe.outcome for probe in probes)
    counted = ", ".join(f"{number[outcome]} {outcome}" for outcome in WORST_FIRST if number[outcome])
    return counted or "nothing probed"


def troubles(probes: Sequence[ProbeRecord]) -> list[Trouble]:
    """Every finding of a probe that hung, failed or broke, in this order, else in the order of the run.

    A probe that recorded no finding stands there with its reason.
    """
    return [
        Trouble(outcome=outcome, probe=probe.id, finding=finding)
        for outcome in _TROUBLE
        for probe in probes
        if probe.outcome is outcome
        for finding in probe.findings or (Finding(what=probe.reason or "no reason was recorded"),)
    ]


def gaps(probes: Sequence[ProbeRecord]) -> list[Gap]:
    """What was not covered: inconclusive, then not run, then skipped, each by reason, the most probes first."""
    found: list[Gap] = []
    for outcome in _GAP:
        ids: defaultdict[str, list[str]] = defaultdict(list)
        for probe in probes:
            if probe.outcome is outcome:
                ids[probe.reason or "no reason was recorded"].append(probe.id)
        grouped = sorted(ids.items(), key=lambda item: -len(item[1]))
        found += [
            Gap(outcome=outcome, reason=reason, probes=tuple(probes_of)) for reason, probes_of in grouped
        ]
    return found


def where(finding: Finding) -> str:
    """`KV transfer, shown`, `proxy, likely`, or `layer open` while nothing measured decides."""
    return f"{finding.layer}, {finding.sureness}" if finding.layer else "layer open"


def names(probes: Sequence[str], most: int = 3) -> str:
    """`test_a, test_b[8], and 5 more` for node ids."""
    shown = [probe.rpartition("::")[2] for probe in probes[:most]]
    return ", ".join([*shown, f"and {len(probes) - most} more"] if len(probes) > most else shown)
