"""A failed probe in pytest's own output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_pdserve.report.page import LONGEST, Page
from pytest_pdserve.report.text import cells
from pytest_pdserve.report.troubles import where

if TYPE_CHECKING:
    from pytest_pdserve.judge import Finding

WHAT_LINES: Final = 3
EVIDENCE_LINES: Final = 4
REPLAY_LINES: Final = 2
INDENT: Final = 2
MARGIN: Final = " " * INDENT
REST: Final = "(the whole command stands in record.json and report.html)"


def failure_text(finding: Finding, *, width: int = 80, unicode: bool = True) -> str:
    """What is wrong, in at most 15 lines of at most `width` cells, without a line break at the end.

    What was found, the layer, the evidence, and how to replay it; a long command is cut in its middle.
    """
    page = Page(width=width, unicode=unicode)
    lines = page.wrap(page.text(finding.what), lines=WHAT_LINES)
    lines += page.wrap(page.text(_layer_line(finding)), lines=1, indent=INDENT)
    evidence: list[str] = []
    for place, text in enumerate(finding.evidence):
        room = EVIDENCE_LINES - len(evidence)
        if room < 1:
            evidence.append(
                page.fit(f"  {page.mark} and {len(finding.evidence) - place:,} more in the report")
            )
            break
        evidence += page.wrap(page.text(text), lines=min(room, 3), indent=2 * INDENT, head=MARGIN)
    told = [f"{lead}: {'; '.join(texts)}" for lead, texts in _rest(finding) if texts]
    rest = [
        line for text in told for line in page.wrap(page.text(text), lines=1, indent=2 * INDENT, head=MARGIN)
    ]
    return "\n".join([*lines, *evidence, *rest, *_replay(page, finding.replay)])


def _rest(finding: Finding) -> list[tuple[str, tuple[str, ...]]]:
    """What bears on the layer besides its evidence."""
    decides = (finding.would_decide,) if finding.would_decide else ()
    return [("against it", finding.against), ("ruled out", finding.ruled_out), ("would decide", decides)]


def _layer_line(finding: Finding) -> str:
    if not finding.layer:
        return "layer open: nothing measured decides"
    by = f" (by the rule: {finding.rule})" if finding.rule else ""
    return f"layer: {where(finding)}{by}"


def _replay(page: Page, command: str | None) -> list[str]:
    if command is None:
        return []
    room = page.width - 2 * INDENT
    text = f"replay: {page.ends(command, LONGEST)}"
    if cells(text) <= room:
        return page.wrap(text, lines=1, indent=INDENT)
    # A line that is broken at a blank isn't full: three quarters of the room nearly always suffice.
    short = f"replay: {page.ends(command, max(REPLAY_LINES * room * 3 // 4, 1))}"
    lines = page.wrap(short, lines=REPLAY_LINES, indent=2 * INDENT, head=MARGIN)
    return [*lines, *page.wrap(REST, lines=1, indent=2 * INDENT)]
