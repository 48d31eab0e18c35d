"""A run and its probes as parts of pytest-html's page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_pdserve.judge import AGAINST, VerdictOutcome
from pytest_pdserve.report.latencies import latency_rows
from pytest_pdserve.report.markup import Html, clipped, join, tag
from pytest_pdserve.report.style import STYLE
from pytest_pdserve.report.troubles import Trouble, counts, gaps, names, troubles
from pytest_pdserve.units import count, seconds
from pytest_pdserve.wire import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_pdserve.judge import LatencyBudget, ProbeRecord, ReplyRecord
    from pytest_pdserve.report.record import RunRecord

MOST_FINDINGS: Final = 200
MOST_EVIDENCE: Final = 60
MOST_REPLIES: Final = 20
LONGEST_LINE: Final = 2_000
"""Characters of any one line; record.json has the whole."""
LONGEST_REPLAY: Final = 16_000
_VERDICT_CLASSES: Final = {
    VerdictOutcome.ACCEPTED: "good",
    VerdictOutcome.REJECTED: "bad",
    VerdictOutcome.INCONCLUSIVE: "unsure",
}


def summary_html(record: RunRecord, *, budget: LatencyBudget | None = None) -> str:
    """The run's verdict, findings, latencies and what was not covered, style included.

    `budget` is shown beside the latencies.
    """
    return tag(
        "section",
        STYLE,
        *_head(record),
        *_findings(record),
        *_latencies(record, budget),
        *_not_covered(record),
        class_="pd",
        aria_label="acceptance",
    )


def header_cells() -> tuple[str, ...]:
    """The heads of `row_cells`' columns, which pytest-html's page can sort by."""
    return tuple(
        tag("th", name, class_="sortable", data_column_type=column) for column, name in _COLUMNS.items()
    )


def row_cells(probe: ProbeRecord) -> tuple[str, ...]:
    """The table cells of one probe: the layer at fault, its slowest TTFT and its slowest E2E."""
    layers = list(dict.fromkeys(finding.layer for finding in probe.findings if finding.layer))
    return (
        tag("td", _line(", ".join(layers)), class_="col-layer"),
        _time_cell("col-ttft", _slowest(reply.ttft for reply in probe.replies)),
        _time_cell("col-e2e", _slowest(reply.e2e for reply in probe.replies)),
    )


def probe_html(probe: ProbeRecord) -> str:
    """What a probe's row unfolds to: its reason, its findings and its replies with their phases."""
    parts = [tag("p", _line(probe.reason))] if probe.reason else []
    parts += [
        _finding(Trouble(outcome=probe.outcome, probe=probe.id, finding=finding))
        for finding in probe.findings
    ]
    if probe.replies:
        parts.append(_replies(probe))
    return tag("div", *parts, class_="pd") if parts else ""


_COLUMNS: Final = {"layer": "Layer", "ttft": "TTFT", "e2e": "E2E"}


def _head(record: RunRecord) -> list[Html]:
    target, outcome = record.target, record.verdict.outcome
    facts = {
        "target": target.entry,
        "services": ", ".join(f"{service.name} {service.url}" for service in target.services),
        "engine": f"{target.engine} {target.engine_version or '(version unknown)'}",
        "model": target.model or "unknown",
        "probes": counts(record.probes) + (f"; picked: {record.selection}" if record.selection else ""),
        "run": f"{record.started}, depth {record.depth}",
        "plan": record.plan,
        "client": f"late by {seconds(record.client_lag)} at most",
        "tool": f"pytest-pdserve {record.tool_version}",
    }
    return [
        tag(
            "p",
            tag("span", str(outcome), class_=_VERDICT_CLASSES[outcome]),
            f" {_line(target.name)} in {seconds(record.duration)}",
            class_="verdict",
        ),
        _lines(record.verdict.reasons),
        _lines([f"note: {note}" for note in target.notes]),
        tag("dl", *(join(tag("dt", name), tag("dd", _line(text))) for name, text in facts.items() if text)),
    ]


def _findings(record: RunRecord) -> list[Html]:
    found = troubles(record.probes)
    if not found:
        return []
    shown = [_finding(trouble) for trouble in found[:MOST_FINDINGS]]
    if len(found) > MOST_FINDINGS:
        shown.append(tag("p", f"and {count(len(found) - MOST_FINDINGS, 'more finding')} in record.json"))
    return [tag("h2", "Findings"), *shown]


def _finding(trouble: Trouble) -> Html:
    finding, against = trouble.finding, trouble.outcome in AGAINST
    parts = [
        tag(
            "h3",
            tag("span", trouble.outcome.upper(), class_="bad" if against else "unsure"),
            f" {_line(finding.what)} ",
            tag("span", _line(trouble.layer), class_="quiet"),
        ),
        tag("p", _line(trouble.probe), class_="quiet"),
        _lines(finding.evidence),
    ]
    if finding.replay:
        parts.append(tag("p", "Replay:", class_="quiet"))
        parts.append(tag("pre", tag("code", clipped(finding.replay, LONGEST_REPLAY)), tabindex="0"))
    return tag("div", *parts, class_="finding against" if against else "finding")


def _latencies(record: RunRecord, budget: LatencyBudget | None) -> list[Html]:
    rows = [
        [
            row.name,
            seconds(row.p50),
            seconds(row.p99),
            "" if row.budget is None else seconds(row.budget),
            f"{row.count:,}",
        ]
        for row in latency_rows(record.probes, budget)
    ]
    if not rows:
        return []
    caption = "All whole streamed replies of the run. ITL: the replies' own p50s and p99s."
    table = _table(["latency", "p50", "p99", "budget", "replies"], rows, kind="latencies")
    return [tag("h2", "Latencies"), table, tag("p", caption, class_="quiet")]


def _not_covered(record: RunRecord) -> list[Html]:
    lines = [
        f"{len(gap.probes)} {gap.outcome}: {gap.reason} ({names(gap.probes, most=20)})"
        for gap in gaps(record.probes)
    ]
    return [tag("h2", "Not covered"), _lines(lines)] if lines else []


def _replies(probe: ProbeRecord) -> Html:
    shown = _worth_showing(probe.replies)
    phases = list(dict.fromkeys(phase for _, reply in shown for phase in reply.phases))
    heads = ["reply", "outcome", "waited for", "finish", "TTFT", "2nd token", "ITL p99", "E2E", "tokens"]
    rows = [
        [
            f"{number}",
            f"{reply.outcome}: {reply.reason}" if reply.reason else reply.outcome,
            reply.waited_for,
            reply.finish_reason or "",
            *(_time(value) for value in (reply.ttft, reply.second_token, reply.itl_p99, reply.e2e)),
            _tokens(reply),
            *(_time(reply.phases.get(phase)) for phase in phases),
        ]
        for number, reply in shown
    ]
    parts = [_table(heads + [phase.replace("_", " ") for phase in phases], rows, kind="replies")]
    if more := len(probe.replies) - len(shown):
        parts.append(tag("p", f"and {count(more, 'more reply', 'more replies')} in record.json"))
    if probe.dropped_replies:
        parts.append(tag("p", f"and {count(probe.dropped_replies, 'more reply', 'more replies')} not kept"))
    return join(*parts)


def _worth_showing(replies: Sequence[ReplyRecord]) -> list[tuple[int, ReplyRecord]]:
    """At most `MOST_REPLIES` with their number from 1, in order; those that didn't end well before the others."""
    ranked = sorted(enumerate(replies, start=1), key=lambda pair: pair[1].outcome == Outcome.COMPLETED)
    return sorted(ranked[:MOST_REPLIES], key=lambda pair: pair[0])


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, kind: str) -> Html:
    head = tag("tr", *(tag("th", _line(name), scope="col") for name in heads))
    body = [tag("tr", *(tag("td", _line(text)) for text in row)) for row in rows]
    table = tag("table", tag("thead", head), tag("tbody", *body), class_=kind)
    return tag("div", table, class_="wide", tabindex="0")


def _lines(texts: Sequence[str]) -> Html:
    shown = [tag("li", _line(text)) for text in texts[:MOST_EVIDENCE]]
    if len(texts) > MOST_EVIDENCE:
        shown.append(tag("li", f"and {count(len(texts) - MOST_EVIDENCE, 'more line')} in record.json"))
    return tag("ul", *shown) if shown else Html("")


def _line(text: str) -> str:
    return clipped(text, LONGEST_LINE)


def _time(value: float | None) -> str:
    return "" if value is None else seconds(value)


def _tokens(reply: ReplyRecord) -> str:
    if reply.prompt_tokens is None and reply.completion_tokens is None:
        return ""
    return " + ".join(
        "?" if number is None else f"{number:,}" for number in (reply.prompt_tokens, reply.completion_tokens)
    )


def _slowest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _time_cell(column: str, value: float | None) -> Html:
    # pytest-html's page sorts by a cell's markup as text: the unseen number in front puts it in order.
    key = tag("span", f"{value:015.6f}", hidden="hidden") if value is not None else Html("")
    return tag("td", key, _time(value), class_=column)
