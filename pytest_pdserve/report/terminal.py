"""A run in one block of text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_pdserve.judge import AGAINST, VerdictOutcome
from pytest_pdserve.report.latencies import latency_rows
from pytest_pdserve.report.page import Colour, Page
from pytest_pdserve.report.text import cells, shorten
from pytest_pdserve.report.troubles import counts, gaps, names, troubles
from pytest_pdserve.units import count, seconds

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_pdserve.judge import LatencyBudget
    from pytest_pdserve.report.record import RunRecord
    from pytest_pdserve.report.troubles import Gap, Trouble

MOST_FINDINGS: Final = 10
MOST_REASONS: Final = 5
MOST_GAPS: Final = 6
FINDING_LINES: Final = 3
LAG_WORTH_SAYING: Final = 0.01
"""Seconds; below, our own lateness doesn't change how a latency reads."""

_INDENT: Final = 11
"""Cells of a finding's number and outcome."""
_GAP_INDENT: Final = 20
_LONGEST_LAYER: Final = 30
_VERDICT_COLOURS: Final = {
    VerdictOutcome.ACCEPTED: Colour.GOOD,
    VerdictOutcome.REJECTED: Colour.BAD,
    VerdictOutcome.INCONCLUSIVE: Colour.UNSURE,
}


def terminal_block(
    record: RunRecord,
    *,
    reports: Path | None,
    width: int = 80,
    colour: bool = False,
    unicode: bool = True,
    budget: LatencyBudget | None = None,
) -> str:
    """The verdict and what led to it, in lines of at most `width` cells, without a line break at the end.

    `reports` is the folder in which this run's files lie, None when it leaves none; `budget` is shown beside
    the latencies; `unicode` is False for a terminal that has only ASCII. Colour adds escape sequences, no cells.
    """
    page = Page(width=width, unicode=unicode, colour=colour)
    parts = [
        _head(page, record),
        _findings(page, troubles(record.probes)),
        _latencies(page, record, budget),
        _not_covered(page, gaps(record.probes)),
        []
        if reports is None
        else page.wrap(page.text(f"report: {reports / 'report.html'}"), lines=3, indent=1),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _head(page: Page, record: RunRecord) -> list[str]:
    outcome, counted = str(record.verdict.outcome), counts(record.probes)
    left = f" {outcome}   {page.text(record.target.name)} in {seconds(record.duration)}"
    together = page.sides(left, counted)
    first, *more = [together] if together else [page.fit(left), *page.wrap(counted, lines=2, indent=1)]
    lines = [page.paint(first, outcome, _VERDICT_COLOURS[record.verdict.outcome]), *more]
    lines += page.wrap(page.text(described(record)), lines=2, indent=1)
    if record.selection:
        lines += page.wrap(page.text(f"picked: {record.selection}"), lines=2, indent=1)
    for note in record.target.notes:
        lines += page.wrap(page.text(f"note: {note}"), lines=3, indent=1)
    reasons = [reason for reason in record.verdict.reasons if reason not in counted]
    for reason in reasons[:MOST_REASONS]:
        lines += page.wrap(page.text(reason), lines=3, indent=1)
    if len(reasons) > MOST_REASONS:
        lines.append(page.fit(f" and {count(len(reasons) - MOST_REASONS, 'more reason')} in the report"))
    return lines


def described(record: RunRecord) -> str:
    """`http://llm-07:30001 · sglang 0.5.23 · deepseek-v4-flash`: what was under test."""
    target = record.target
    engine = f"{target.engine} {target.engine_version}" if target.engine_version else target.engine
    return " · ".join([target.entry, engine, target.model or "model unknown"])


def _findings(page: Page, found: list[Trouble]) -> list[str]:
    lines: list[str] = []
    for number, trouble in enumerate(found[:MOST_FINDINGS], start=1):
        lines += _finding(page, number, trouble)
    if len(found) > MOST_FINDINGS:
        lines.append(page.fit(f" and {len(found) - MOST_FINDINGS:,} more in the report"))
    return lines


def _finding(page: Page, number: int, trouble: Trouble) -> list[str]:
    finding = trouble.finding
    label = f"{number:>2} {trouble.outcome.upper()}"
    where = page.text(shorten(trouble.layer, _LONGEST_LAYER))
    beside = Page(width=page.width - cells(where) - 2, unicode=page.unicode)
    head = f" {label:<{_INDENT - 1}}"
    first, *more = beside.wrap(page.text(finding.what), lines=2, indent=_INDENT, head=head) or [head]
    lines = [page.sides(first, where) or page.fit(first), *more]
    lines += _evidence(page, finding.evidence, lines=FINDING_LINES - len(lines))
    ends = {"in ": trouble.probe, "replay: ": finding.replay}
    for lead, text in ends.items():
        if text:
            room = max(page.width - _INDENT - len(lead), 1)
            lines.append(page.fit(f"{' ' * _INDENT}{lead}{page.ends(text, room)}"))
    bad = Colour.BAD if trouble.outcome in AGAINST else Colour.UNSURE
    return [page.paint(lines[0].rstrip(), label, bad), *lines[1:]]


def _evidence(page: Page, evidence: tuple[str, ...], *, lines: int) -> list[str]:
    """The first of `evidence`, one line each; a last one alone may take what is left of `lines` (>= 1)."""
    *before, last = [page.text(text) for text in evidence[:lines]] or [""]
    shown = [line for text in before for line in page.wrap(text, lines=1, indent=_INDENT)]
    if not (left_out := len(evidence) - lines) > 0:
        return shown + page.wrap(last, lines=lines - len(shown), indent=_INDENT)
    more = f" (+{left_out:,} more)"
    room = Page(width=page.width - len(more), unicode=page.unicode)
    return shown + [line + more for line in room.wrap(last, lines=1, indent=_INDENT)]


def _latencies(page: Page, record: RunRecord, budget: LatencyBudget | None) -> list[str]:
    rows = latency_rows(record.probes, budget)
    if not rows:
        return []
    lines = [f" {'':<13}{'p50':>9}{'p99':>12}{'budget':>12}{'replies':>9}"]
    for row in rows:
        limit = "" if row.budget is None else seconds(row.budget)
        lines.append(f" {row.name:<13}{seconds(row.p50):>9}{seconds(row.p99):>12}{limit:>12}{row.count:>9,}")
    if record.client_lag >= LAG_WORTH_SAYING:
        lines.append(f" the client itself was late by up to {seconds(record.client_lag)}")
    return [page.fit(line) for line in lines]


def _not_covered(page: Page, found: list[Gap]) -> list[str]:
    if not found:
        return []
    lines = [page.fit(" not covered")]
    for gap in found[:MOST_GAPS]:
        text = page.text(f"{gap.reason}: {names(gap.probes)}")
        lines += page.wrap(
            text, lines=2, indent=_GAP_INDENT, head=f" {len(gap.probes):>4} {gap.outcome:<13} "
        )
    if len(found) > MOST_GAPS:
        rest = sum(len(gap.probes) for gap in found[MOST_GAPS:])
        lines.append(page.fit(f" and {count(rest, 'more probe')} in the report"))
    return lines
