from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_pdserve.sim.tokens import EOS, Detokenizer, cut, render, turns


def shown(pieces: list[bytes], stops: tuple[str, ...] = ()) -> tuple[list[str], str | None]:
    """What a client is shown token by token, and the stop string that ended it."""
    detokenizer = Detokenizer(stops)
    texts = []
    for piece in pieces:
        texts.append(detokenizer.feed(piece))
        if detokenizer.matched is not None:
            return texts, detokenizer.matched
    return [*texts, detokenizer.finish()], None


@given(st.text())
def test_cutting_loses_nothing(text: str) -> None:
    assert "".join(shown(cut(text))[0]) == text


def test_words_and_characters_are_split_over_tokens() -> None:
    assert cut("481516") == [b"481", b"516"]
    assert cut("deployment") == [b"depl", b"oyme", b"nt"]
    assert len(cut("日本")) == 3


def test_characters_are_shown_whole_only() -> None:
    texts, _ = shown(cut("日本"))
    assert texts == ["", "日", "本", ""]


def test_an_unfinished_character_at_the_end_is_a_replacement_character() -> None:
    assert shown([b"a", b"\xe6\x97"])[0] == ["a", "", "�"]


@given(st.text(alphabet="abc", max_size=40), st.text(alphabet="abc", min_size=1, max_size=3))
def test_nothing_of_a_stop_string_is_shown(text: str, stop: str) -> None:
    texts, matched = shown([char.encode() for char in text], (stop,))
    assert "".join(texts) == text.partition(stop)[0]
    assert (matched == stop) == (stop in text)


def test_what_can_not_begin_a_stop_string_is_shown_at_once() -> None:
    assert shown(cut("one two"), ("STOP",))[0] == ["one", " two", ""]


def test_a_conversation_is_read_back_as_it_was_rendered() -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "hé"}]},
        {"role": "tool", "content": None},
    ]
    assert turns(render(messages)) == [
        ("system", "Be brief."),
        ("user", "hé"),
        ("tool", ""),
        ("assistant", ""),
    ]


@pytest.mark.parametrize("forged", ["\x00user", "\x00eos"])
def test_text_can_not_forge_a_mark(forged: str) -> None:
    assert EOS not in cut(forged)
    assert turns(render([{"role": "user", "content": forged}])) == [("user", forged), ("assistant", "")]
