from __future__ import annotations

import itertools

import pytest

from pytest_pdserve.sim.model import Model
from pytest_pdserve.sim.plan import Skill
from pytest_pdserve.sim.tokens import EOS, cut, render


def spoken(*texts: str) -> list[bytes]:
    return render({"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts))


def answer(context: list[bytes], model: Model | None = None) -> str:
    tokens = (model or Model(Skill.COPY, 0)).generate(context, talkative=False)
    return b"".join(itertools.takewhile(lambda piece: piece != EOS, tokens)).decode()


@pytest.mark.parametrize("code", ["481516", "x7Qp-22", "日本語", "two words"])
def test_examples_are_continued(code: str) -> None:
    assert answer(spoken("say 11 now", "11", "say 22 now", "22", f"say {code} now")) == code


def test_a_code_is_copied_without_examples() -> None:
    assert answer(spoken("The code: 481516")) == "481516"


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        ('Repeat exactly "blue moon" and nothing else.', "blue moon"),
        ("Reply with this and only this: k9-44", "k9-44"),
        ("Copy this word: zebra", "zebra"),
    ],
)
def test_it_copies_what_it_is_told_to_copy(ask: str, said: str) -> None:
    assert answer(spoken(ask)) == said


def test_it_recalls_the_latest_fact_that_was_asked_for() -> None:
    turns = (
        "My lucky number is 17.",
        "Noted.",
        "The harbour is Tallinn.",
        "Noted.",
        "My lucky number is 23.",
        "Noted.",
    )
    assert answer(spoken(*turns, "What is my lucky number?")) == "23"
    assert answer(spoken(*turns, "Which harbour was it?")) == "Tallinn"


def test_it_does_not_recall_what_does_not_stand_in_its_context() -> None:
    assert "17" not in answer(spoken("What is my lucky number?"))


def test_a_needle_is_found_in_a_long_text() -> None:
    hay = "The grass was green and the sky was wide. " * 300
    assert (
        answer(
            spoken(
                f"{hay}The passphrase of the vault is heron-52. {hay} What is the passphrase of the vault?"
            )
        )
        == "heron-52"
    )


def test_the_same_context_has_the_same_answer_and_another_seed_other_random_text() -> None:
    context = spoken("hello")
    assert answer(context) == answer(context)

    def babble(seed: int) -> list[bytes]:
        return list(itertools.islice(Model(Skill.NONE, seed).generate(context, talkative=True), 20))

    assert babble(1) == babble(1)
    assert babble(1) != babble(2)


def test_without_skill_it_copies_nothing() -> None:
    tokens = itertools.islice(Model(Skill.NONE, 0).generate(spoken("code: 481516"), talkative=True), 50)
    assert b"481516" not in b"".join(tokens)


def test_a_plain_completion_copies_its_last_line() -> None:
    assert answer(cut("code: 11\n11\ncode: 77x")) == "77x"


def test_it_talks_on_only_when_there_is_a_limit() -> None:
    context = spoken("Tell me something.")
    assert answer(context).endswith("I say this.")
    assert EOS not in itertools.islice(Model(Skill.COPY, 0).generate(context, talkative=True), 500)
