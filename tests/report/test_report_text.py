import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_samples import DRAWN, HOSTILE, any_text
from rich.cells import cell_len

from pytest_pdserve.report import shorten, visible
from pytest_pdserve.report.text import ascii_only, cells, fit, shorten_middle, wrap
from pytest_pdserve.units import count, seconds


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain 深度 é → 🙂", "plain 深度 é → 🙂"),
        ("\x1b[31m", r"\u001b[31m"),
        ("a\0b\x7f\x9b", r"a\u0000b\u007f\u009b"),
        ("\n\r\t", r"\n\r\t"),
        ("\u202egnp\u2066\u200e", r"\u202egnp\u2066\u200e"),
        ("a\u200bb\ufeff\u2060\u2028", r"a\u200bb\ufeff\u2060\u2028"),
        ("a\u00a0b\u3000", r"a\u00a0b\u3000"),
        ("\ud800 \udfff", r"\ud800 \udfff"),
        ("\U000e0041\U000e0100", r"\udb40\udc41\udb40\udd00"),
        ("\u3164\u2800\ufe0f", r"\u3164\u2800\ufe0f"),
        ("C:\\new", "C:\\new"),
    ],
)
def test_what_does_not_show_is_written_out(text, shown):
    assert visible(text) == shown


@DRAWN
@given(any_text)
def test_visible_text_is_printable_and_encodable(text):
    shown = visible(text)
    assert shown.isprintable()
    assert shown.encode("utf-8").decode() == shown
    assert visible(shown) == shown


@DRAWN
@given(st.text(st.characters(exclude_characters="\\"), max_size=200))
def test_a_json_body_stays_the_same_request(text):
    body = json.dumps({"content": text}, ensure_ascii=False)
    assert json.loads(visible(body)) == {"content": text}


@DRAWN
@given(any_text)
def test_ascii_only(text):
    assert ascii_only(text).isascii()
    assert ascii_only(text).isprintable()


@DRAWN
@given(any_text, st.integers(1, 50))
def test_shortened_text_keeps_the_limit_and_its_ends(text, limit):
    short, ends = shorten(text, limit), shorten_middle(text, limit)
    assert max(len(short), len(ends)) <= limit
    if len(text) <= limit:
        assert short == ends == text
    else:
        assert short.endswith("…")
        assert "…" in ends
        assert text.startswith(short[:-1])


def test_the_middle_goes():
    assert shorten_middle("curl -N http://host -d '{}'", 20) == "curl -N http …  '{}'"


@DRAWN
@given(any_text, st.integers(2, 100), st.integers(1, 5))
def test_wrapped_lines_keep_the_width(text, width, lines):
    wrapped = wrap(visible(text), width, lines)
    assert len(wrapped) <= lines
    assert all(cell_len(line) <= width for line in wrapped)


@DRAWN
@given(st.lists(st.text("abcdefg", min_size=1, max_size=9), min_size=1, max_size=30))
def test_wrapping_loses_no_word(words):
    assert " ".join(wrap(" ".join(words), 20, 1000)).split() == words


def test_what_is_left_over_is_marked():
    assert wrap("one two three four", 9, 1) == ["one two …"]
    assert wrap("one two three four", 9, 2) == ["one two", "three fo…"]
    assert wrap("深深深深", 5, 2) == ["深深", "深深"]
    assert wrap("   ", 9, 2) == []


@DRAWN
@given(any_text, st.integers(0, 50))
def test_fitted_text_keeps_the_width(text, width):
    shown = visible(text)
    assert cell_len(fit(shown, width)) <= width
    assert cells(shown) == cell_len(shown)


def test_hostile_text_leaves_no_control_character():
    assert not any(ord(char) < 32 for char in visible(HOSTILE))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0 ms"),
        (0.0002, "0.2 ms"),
        (0.00096, "1 ms"),
        (0.012, "12 ms"),
        (0.0994, "99 ms"),
        (0.0996, "0.10 s"),
        (0.11, "0.11 s"),
        (9.994, "9.99 s"),
        (9.996, "10.0 s"),
        (17.9, "17.9 s"),
        (59.96, "1 min 0 s"),
        (112.3, "1 min 52 s"),
        (3599.7, "1 h 0 min"),
        (7380.0, "2 h 3 min"),
        (1e7, "2,777 h 47 min"),
        (-0.5, "-0.50 s"),
    ],
)
def test_seconds(value, shown):
    assert seconds(value) == shown


def test_count():
    assert count(1, "reply", "replies") == "1 reply"
    assert count(2, "reply", "replies") == "2 replies"
    assert count(1420, "request") == "1,420 requests"
