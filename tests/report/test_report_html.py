import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from report_samples import DRAWN, HOSTILE, any_probe, any_record, probe, record, reply

from pytest_pdserve.judge import Finding, LatencyBudget, ProbeOutcome, ProbeRecord, Sureness
from pytest_pdserve.report import header_cells, probe_html, row_cells, summary_html, visible
from pytest_pdserve.report.markup import Html, clipped, join, tag

OURS = {"section", "style", "p", "span", "ul", "li", "dl", "dt", "dd", "h2", "h3", "div", "pre", "code"} | {
    "table", "thead", "tbody", "tr", "th", "td",
}  # fmt: skip
ATTRIBUTES = {"class", "aria-label", "tabindex", "scope", "hidden", "data-column-type"}


class Reader(HTMLParser):
    """Text and tags of a page; fails on anything that our own code doesn't write, or on unbalanced tags."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text = ""
        self.open: list[str] = []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        assert tag in OURS
        assert {name for name, _ in attrs} <= ATTRIBUTES
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            assert data.isprintable()
            self.text += data + "\n"

    def handle_comment(self, data):
        raise AssertionError("a comment")

    handle_decl = handle_pi = unknown_decl = handle_comment


@DRAWN
@given(any_record)
def test_nothing_untrusted_becomes_markup(drawn):
    page = summary_html(drawn)
    Reader(page)
    page.encode("utf-8")


@DRAWN
@given(any_probe)
def test_nothing_untrusted_becomes_markup_in_a_row(drawn):
    Reader(probe_html(drawn))
    for cell in row_cells(drawn):
        Reader(cell)
        assert cell.startswith("<td")


def hostile_probe(length: int) -> ProbeRecord:
    evil = HOSTILE + "x" * length
    finding = Finding(what=evil, evidence=(evil,) * 200, layer=evil, replay=evil)
    answers = tuple(
        reply(outcome=evil, reason=evil, finish_reason=evil, phases={evil: 1.0}) for _ in range(99)
    )
    return probe(ProbeOutcome.FAILED, id=evil, reason=evil, findings=(finding,), replies=answers)


@pytest.mark.parametrize("length", [0, 10_000_000])
def test_hostile_text_is_text_and_of_bounded_length(length):
    evil = hostile_probe(length)
    for page in (summary_html(record(evil)), probe_html(evil), row_cells(evil)[0]):
        assert visible(HOSTILE) in Reader(page).text
        assert "<script" not in page
        assert len(page) < 1_500_000


def test_nothing_is_loaded_and_nothing_runs():
    page = summary_html(record(hostile_probe(0)))
    style = re.search(r"<style>(.*)</style>", page, re.DOTALL)
    assert style is not None
    assert not re.search(r"url\(|@import|@font-face|//", style[1])
    assert not re.search(r"<(script|link|img|iframe)|\son\w+=|javascript:", page.replace(style[0], ""))


def test_the_summary_says_what_there_is_to_know():
    finding = Finding(
        what="the 4th answer hung",
        evidence=("17.9 s, 106.4 s",),
        layer="KV transfer",
        sureness=Sureness.SHOWN,
        replay="curl -d '{}'",
    )
    text = Reader(
        summary_html(
            record(
                probe(ProbeOutcome.HUNG, findings=(finding,), replies=(reply(),)),
                probe(ProbeOutcome.NOT_RUN, id="a.py::test_b", reason="the path is dead"),
                probe(ProbeOutcome.BROKE, id="a.py::test_c", reason="NameError"),
                selection="3 of 30 probes",
            ),
            budget=LatencyBudget(ttft=0.8),
        )
    ).text.split("\n")
    for line in (
        "REJECTED",
        " llm-07 in 1 min 52 s",
        "1 hung",
        "http://llm-07:30001",
        "sglang 0.5.23",
        "a-model",
        "1 hung, 1 broke, 1 not run; picked: 3 of 30 probes",
        "at most 1,420 requests",
        " the 4th answer hung ",
        "KV transfer, shown",
        "17.9 s, 106.4 s",
        "curl -d '{}'",
        "0.80 s",
        "1 not run: the path is dead (test_b)",
        " NameError ",
    ):
        assert line in text
    assert "layer open" not in text


def test_an_accepted_page_has_no_findings():
    assert "Findings" not in summary_html(record(probe()))


def test_a_row_shows_layer_and_slowest_and_sorts_by_number():
    both = (Finding(what="a", layer="proxy"), Finding(what="b", layer="proxy"), Finding(what="c"))
    rows = [
        row_cells(
            probe(ProbeOutcome.FAILED, findings=both, replies=(reply(ttft=slow, e2e=None), reply(ttft=0.01)))
        )
        for slow in (9.0, 106.4)
    ]
    assert [Reader(cell).text.split("\n")[-2:] for cell in rows[1]] == [
        ["proxy", ""],
        ["1 min 46 s", ""],
        ["0.50 s", ""],
    ]
    # As pytest-html's page takes them: everything between the cell's tags, compared as text.
    nine, hundred = (re.search(r"<td.*?>(.*?)</td>", row[1])[1] for row in rows)
    assert nine < hundred
    assert row_cells(probe()) == tuple(f'<td class="col-{name}"></td>' for name in ("layer", "ttft", "e2e"))
    columns = [re.search('data-column-type="(.*?)"', head)[1] for head in header_cells()]
    assert [f'<td class="col-{name}"' in cell for name, cell in zip(columns, rows[0], strict=True)] == [
        True
    ] * 3


def test_a_row_unfolds_to_replies_with_their_phases():
    hung = reply(
        outcome="hung", reason="nothing for 30 s", waited_for="first token", phases={"first_byte": 0.01}
    )
    page = probe_html(
        probe(
            ProbeOutcome.HUNG, replies=(reply(prompt_tokens=12, completion_tokens=8), hung), dropped_replies=3
        )
    )
    cells = [re.findall("<t[dh].*?>(.*?)</t[dh]>", row) for row in re.findall("<tr>(.*?)</tr>", page)]
    assert cells[0][-4:] == ["connected", "headers", "ended", "first byte"]
    assert cells[1] == (
        [
            "1",
            "completed",
            "done",
            "",
            "0.10 s",
            "20 ms",
            "30 ms",
            "0.50 s",
            "12 + 8",
            "1 ms",
            "90 ms",
            "0.50 s",
            "",
        ]
    )
    assert cells[2][1:3] == ["hung: nothing for 30 s", "first token"]
    assert cells[2][-1] == "10 ms"
    assert "and 3 more replies not kept" in page
    assert probe_html(probe()) == ""


def test_of_many_replies_those_that_did_not_end_well_are_shown():
    page = probe_html(probe(replies=(*[reply()] * 99, reply(outcome="hung"))))
    numbers = [int(number) for number in re.findall(r"<tr><td>(\d+)</td>", page)]
    assert numbers == [*range(1, 20), 100]
    assert "and 80 more replies in record.json" in page


def test_a_tag_escapes_all_but_markup():
    assert tag("p", "<b>", Html("<i>x</i>"), class_='a"b', data_x="1") == (
        '<p class="a&quot;b" data-x="1">&lt;b&gt;<i>x</i></p>'
    )
    assert join("a\x1b", "&") == r"a\u001b&amp;"


def test_clipped_text_says_how_long_it_was():
    assert clipped("abc", 3) == "abc"
    assert clipped("x" * 2000, 10) == "x" * 9 + "… (2,000 characters, cut here)"


def test_much_evidence_and_many_findings_are_counted():
    many = Finding(what="odd", evidence=tuple(f"line {number}." for number in range(70)))
    page = summary_html(record(*[probe(ProbeOutcome.FAILED, findings=(many,))] * 203))
    assert page.count('class="finding against"') == 200
    assert page.count("<li>line 59.</li><li>and 10 more lines in record.json</li>") == 200
    assert "line 60." not in page
    assert "and 3 more findings in record.json" in page
