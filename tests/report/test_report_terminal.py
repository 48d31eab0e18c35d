import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_samples import DRAWN, HOSTILE, TARGET, any_finding, any_record, probe, record, reply
from rich.cells import cell_len

from pytest_pdserve.judge import Finding, LatencyBudget, ProbeOutcome, Sureness
from pytest_pdserve.report import failure_text, terminal_block
from pytest_pdserve.report.latencies import latency_rows, percentile

CURL = "curl -N http://llm-07:30001/v1/chat/completions -d '{" + '"content":"x",' * 40 + "}'"
HUNG = Finding(
    what="the 4th answer did not come within 120 s",
    evidence=("17.9 s, 106.4 s, 10.5 s, > 120 s", "prefill: 1 in flight, not moving", "both healthy in 3 ms"),
    layer="KV transfer",
    sureness=Sureness.SHOWN,
    replay=CURL,
)


def block(shown, **options) -> str:
    return terminal_block(shown, **({"reports": None} | options))


@DRAWN
@given(any_record, st.integers(20, 140), st.booleans())
def test_no_line_of_the_block_is_wider_than_asked(drawn, width, unicode):
    shown = block(drawn, width=width, unicode=unicode, reports=Path("reports/x/20261130T230643Z"))
    for line in shown.split("\n"):
        assert line.isprintable()
        assert cell_len(line) <= width
    assert unicode or shown.isascii()


@DRAWN
@given(any_record, st.integers(20, 140))
def test_colour_adds_nothing_but_colour(drawn, width):
    plain, coloured = block(drawn, width=width), block(drawn, width=width, colour=True)
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain
    assert "\x1b" not in plain


@DRAWN
@given(any_finding, st.integers(20, 140))
def test_a_failure_keeps_to_width_and_fifteen_lines(finding, width):
    lines = failure_text(finding, width=width).split("\n")
    assert len(lines) <= 15
    assert all(cell_len(line) <= width and line.isprintable() for line in lines)


def test_an_accepted_run():
    shown = block(
        record(
            probe(replies=(reply(), reply(ttft=0.19))),
            probe(ProbeOutcome.SKIPPED, id="a.py::test_a", reason="no logprobs"),
            probe(ProbeOutcome.SKIPPED, id="a.py::test_b", reason="no logprobs"),
        ),
        reports=Path("reports/llm-07/20261130T230643Z"),
        budget=LatencyBudget(ttft=0.8),
    )
    assert shown.split("\n") == [
        " ACCEPTED   llm-07 in 1 min 52 s                             1 passed, 2 skipped",
        " http://llm-07:30001 · sglang 0.5.23 · a-model",
        "",
        "                    p50         p99      budget  replies",
        " TTFT            0.19 s      0.19 s      0.80 s        2",
        " second token     20 ms       20 ms                    2",
        " ITL              10 ms       30 ms                    2",
        " E2E             0.50 s      0.50 s                    2",
        "",
        " not covered",
        "    2 skipped       no logprobs: test_a, test_b",
        "",
        " report: reports/llm-07/20261130T230643Z/report.html",
    ]


def test_a_rejected_run_shows_the_worst_first_in_few_lines():
    failed = Finding(what="TTFT 4.21 s, budget 800 ms (3 of 64 over)")
    shown = block(
        record(
            probe(ProbeOutcome.BROKE, id="own.py::test_mine", reason="NameError: pdd", answered=False),
            probe(ProbeOutcome.FAILED, id="a.py::test_fast", findings=(failed,)),
            probe(ProbeOutcome.HUNG, id="a.py::test_settles", findings=(HUNG,)),
        )
    )
    lines = shown.split("\n")
    assert lines[0].startswith(" REJECTED   llm-07 in 1 min 52 s")
    assert lines[0].endswith("1 hung, 1 failed, 1 broke")
    assert lines[3:] == [
        "  1 HUNG   the 4th answer did not come within 120 s           KV transfer, shown",
        "           17.9 s, 106.4 s, 10.5 s, > 120 s",
        "           prefill: 1 in flight, not moving (+1 more)",
        "           in a.py::test_settles",
        lines[7],
        "  2 FAILED TTFT 4.21 s, budget 800 ms (3 of 64 over)                  layer open",
        "           in a.py::test_fast",
        "  3 BROKE  NameError: pdd",
        "           in own.py::test_mine",
    ]
    assert lines[7].startswith("           replay: curl -N http://llm-07:30001/")
    assert lines[7].endswith(",}'")
    assert " … " in lines[7]


def test_reasons_selection_notes_and_lag_are_said():

    shown = block(
        record(
            probe(replies=(reply(),)),
            incomplete="interrupted",
            selection="12 of 30 probes",
            client_lag=0.21,
            target=replace(
                TARGET, notes=("the workers could not be asked",), model=None, engine_version=None
            ),
        )
    )
    for line in (
        " incomplete: interrupted",
        " picked: 12 of 30 probes",
        " note: the workers could not be asked",
        " the client itself was late by up to 0.21 s",
        " http://llm-07:30001 · sglang · model unknown",
    ):
        assert f"\n{line}\n" in f"{shown}\n"
    assert "late by" not in block(record(probe(replies=(reply(),)), client_lag=0.009))


def test_a_run_without_probes_says_so():
    assert "nothing probed" in block(record())


def test_at_most_ten_findings_then_how_many_more():
    probes = [probe(ProbeOutcome.FAILED, reason=f"reason {number}") for number in range(13)]
    shown = block(record(*probes))
    assert "reason 9 " in shown
    assert "reason 10" not in shown
    assert " and 3 more in the report" in shown.split("\n")


def test_many_reasons_and_gaps_are_counted():
    probes = [
        probe(ProbeOutcome.INCONCLUSIVE, id=f"a.py::test_{number}", reason=f"reason {number:02}")
        for number in range(9)
    ]
    lines = block(record(*probes)).split("\n")
    assert " and 5 more reasons in the report" in lines
    assert " and 3 more probes in the report" in lines


def test_gaps_are_grouped_by_outcome_and_reason():
    shown = block(
        record(
            *[
                probe(ProbeOutcome.NOT_RUN, id=f"a.py::test_{n}", reason="the path is dead")
                for n in range(52)
            ],
            probe(ProbeOutcome.SKIPPED, id="b.py::test_b", reason="the path is dead"),
            *[probe(ProbeOutcome.SKIPPED, id=f"d.py::test_{n}", reason="no logprobs") for n in range(2)],
            probe(ProbeOutcome.INCONCLUSIVE, id="c.py::test_c", reason="the client was late"),
        )
    )
    assert shown.split("\n")[-4:] == [
        "    1 inconclusive  the client was late: test_c",
        "   52 not run       the path is dead: test_0, test_1, test_2, and 49 more",
        "    2 skipped       no logprobs: test_0, test_1",
        "    1 skipped       the path is dead: test_b",
    ]


def test_a_long_layer_leaves_room_for_what_is_wrong():
    finding = Finding(what="the 4th answer did not come", layer="somewhere " * 20)
    assert "the 4th answer did not come  " in block(record(probe(ProbeOutcome.HUNG, findings=(finding,))))


@pytest.mark.parametrize("length", [1, 10_000_000])
def test_hostile_text_steers_nothing(length):
    evil = HOSTILE + "x" * length
    finding = Finding(what=evil, evidence=(evil,) * 30, layer=evil, replay=evil)
    for text in (
        block(record(probe(ProbeOutcome.HUNG, id=evil, findings=(finding,)), selection=evil)),
        failure_text(finding),
    ):
        assert all(line.isprintable() and cell_len(line) <= 80 for line in text.split("\n"))
        assert r"\u001b[31mred" in text
        assert len(text) < 5000


def test_only_whole_streamed_replies_count():
    probes = [
        probe(replies=(reply(ttft=1.0), reply(ttft=2.0), reply(ttft=3.0))),
        probe(replies=(reply(ttft=90.0, outcome="hung"), reply(ttft=80.0, streamed=False))),
        probe(replies=(reply(ttft=None, second_token=None, itl_p50=None, itl_p99=None, e2e=7.0),)),
    ]
    rows = {row.name: row for row in latency_rows(probes, LatencyBudget(itl_p99=0.1))}
    assert (rows["TTFT"].p50, rows["TTFT"].p99, rows["TTFT"].count) == (2.0, 3.0, 3)
    assert (rows["E2E"].p99, rows["E2E"].count) == (7.0, 4)
    assert (rows["ITL"].p50, rows["ITL"].p99, rows["ITL"].budget) == (0.01, 0.03, 0.1)
    assert latency_rows([probe()]) == []


def test_percentiles():
    assert percentile([5.0], 0.99) == 5.0
    assert percentile([float(n) for n in range(1000)], 0.99) == 990.0
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0


def test_a_failure_in_pytests_own_output():
    assert failure_text(Finding(**{**as_fields(HUNG), "replay": "curl -N http://a"})).split("\n") == [
        "the 4th answer did not come within 120 s",
        "  layer: KV transfer, shown",
        "  17.9 s, 106.4 s, 10.5 s, > 120 s",
        "  prefill: 1 in flight, not moving",
        "  both healthy in 3 ms",
        "  replay: curl -N http://a",
    ]
    assert failure_text(Finding(what="odd")) == "odd\n  layer open: nothing measured decides"


def as_fields(finding: Finding) -> dict[str, object]:
    return {name: getattr(finding, name) for name in ("what", "evidence", "layer", "sureness", "replay")}


def test_a_long_command_is_cut_in_the_middle_with_a_hint():
    lines = failure_text(HUNG).split("\n")
    assert lines[-1] == "    (the whole command stands in record.json and report.html)"
    assert lines[5].startswith("  replay: curl -N http://llm-07:30001/v1/chat/completions")
    assert " … " in lines[5] + lines[6]
    assert lines[6].endswith(",}'")


def test_much_evidence_is_counted():
    text = failure_text(Finding(what="odd", evidence=tuple(f"line {number}" for number in range(20))))
    assert "line 3" in text
    assert "line 4" not in text
    assert "  … and 16 more in the report" in text.split("\n")
