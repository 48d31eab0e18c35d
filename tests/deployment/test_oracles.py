"""Copies are judged so that a weak model is never held against a deployment."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from pytest_pdserve.chat import Copying, new_copyings
from pytest_pdserve.deployment import Deployment, Inconclusive, ProbeFailure, ProbeHang
from pytest_pdserve.oracles import ASKED_AGAIN, check_copies, check_turn
from tests.chat.llm_server import HANG, Asked, Part, answer, copier, sized

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    from tests.chat.llm_server import LlmServer

    Deploy = Callable[..., AbstractContextManager[tuple[Deployment, LlmServer]]]

COPYINGS = new_copyings(random.Random(11), 20)


def check(deploy: Deploy, wrong: dict[str, list[str]], count: int = 4) -> list[str]:
    """Ask for the first codes and check them; `wrong` has, by code, what is answered first, second, ... instead.

    Gives back the codes that were asked for again.
    """
    left = {code: list(answers) for code, answers in wrong.items()}

    def script(asked: Asked) -> Iterable[Part]:
        code = asked.last.removeprefix("code: ")
        return answer(asked, left[code].pop(0)) if left.get(code) else copier(asked)

    asked = COPYINGS[:count]
    with deploy(script) as (pd, server):
        replies = pd.together([copying.messages for copying in asked], **pd.copy_way)
        try:
            check_copies(pd, asked, [pd.whole(reply) for reply in replies])
        finally:
            again = [request.last.removeprefix("code: ") for request in server.asked[count:]]
    return again


def test_right_copies_are_asked_for_once(deploy: Deploy) -> None:
    assert check(deploy, {}) == []


def test_a_code_with_words_around_it_is_right(deploy: Deploy) -> None:
    code = COPYINGS[0].code
    assert check(deploy, {code: [f" {code}.\ncode: 111111"]}) == []


@pytest.mark.parametrize("foreign", [COPYINGS[2].code, COPYINGS[2].examples[1]], ids=["code", "example"])
def test_another_request_s_code_is_cross_talk(deploy: Deploy, foreign: str) -> None:
    code = COPYINGS[1].code
    with pytest.raises(ProbeFailure) as failed:
        check(deploy, {code: [foreign] * 9})
    finding = failed.value.finding
    assert finding.what == "answer 2 carries a code of request 3: cross-talk"
    assert finding.evidence[0] == f"asked for {code}, got {foreign}"
    assert finding.evidence[1] == f"{foreign} stands only in the prompt of request 3"
    assert finding.replay is not None
    assert code in finding.replay


def test_a_code_that_stands_in_both_prompts_proves_nothing(deploy: Deploy) -> None:
    shared = COPYINGS[1].examples[0]
    asked = [COPYINGS[1], Copying(code=COPYINGS[2].code, examples=(shared,))]
    with deploy(lambda asked: answer(asked, shared) if COPYINGS[1].code in asked.last else copier(asked)) as (
        pd,
        _,
    ):
        replies = [pd.chat(copying.messages) for copying in asked]
        check_copies(pd, asked, replies)


def test_wrong_but_right_alone_is_the_deployment_s(deploy: Deploy) -> None:
    first, second = COPYINGS[0], COPYINGS[3]
    with pytest.raises(ProbeFailure) as failed:
        check(deploy, {first.code: ["999999"], second.code: [first.examples[0][::-1], "1"]})
    finding = failed.value.finding
    assert finding.what == "1 of 4 answers are wrong, and right when asked again alone"
    assert finding.evidence[:2] == (
        f"asked for {first.code}, got 999999",
        "2 were wrong in all, 2 of them were asked again",
    )


def test_an_example_s_code_is_named(deploy: Deploy) -> None:
    copying = COPYINGS[0]
    with pytest.raises(ProbeFailure) as failed:
        check(deploy, {copying.code: [copying.examples[2]]})
    assert failed.value.finding.evidence[0].endswith(f"got {copying.examples[2]}, the code of an example")


def test_an_answer_without_a_code_is_shown(deploy: Deploy) -> None:
    with pytest.raises(ProbeFailure) as failed:
        check(deploy, {COPYINGS[0].code: ["I can't\n" + "x" * 100]})
    shown = "I can't " + "x" * 32
    assert failed.value.finding.evidence[0] == f"asked for {COPYINGS[0].code}, got {shown!r}"


def test_wrong_alone_too_is_the_model_s(deploy: Deploy) -> None:
    codes = [copying.code for copying in COPYINGS[:2]]
    assert check(deploy, {code: ["000000"] * 2 for code in codes}) == codes


def test_more_than_half_wrong_alone_too_is_inconclusive(deploy: Deploy) -> None:
    wrong = {copying.code: ["nothing"] * 2 for copying in COPYINGS[:3]}
    with pytest.raises(Inconclusive, match="the model got 3 of 4 codes wrong, alone too"):
        check(deploy, wrong)


def test_only_so_many_are_asked_again(deploy: Deploy) -> None:
    wrong = {copying.code: ["nothing"] * 2 for copying in COPYINGS[:9]}
    assert len(check(deploy, wrong, count=20)) == ASKED_AGAIN


def test_asking_again_may_hang(deploy: Deploy) -> None:
    copying = COPYINGS[0]
    count = 0

    def script(asked: Asked) -> Iterable[Part]:
        nonlocal count
        count += 1
        return answer(asked, "nothing") if count == 1 else [sized(b"") if asked.method == "GET" else HANG]

    with deploy(script, longest_wait=0.3) as (pd, _):
        replies = [pd.chat(copying.messages)]
        with pytest.raises(ProbeHang):
            check_copies(pd, [copying], replies)


TURN = Copying(code=COPYINGS[0].code, examples=(*COPYINGS[0].examples, COPYINGS[1].code, COPYINGS[2].code))


def check_a_turn(deploy: Deploy, reply: Callable[[Asked, int], str | None]) -> int:
    """Check one turn; `reply` says what is answered instead of the right code. Gives back how many were asked."""

    def script(asked: Asked) -> Iterable[Part]:
        nonlocal count
        count += 1
        said = reply(asked, count)
        return copier(asked) if said is None else answer(asked, said)

    count = 0
    with deploy(script) as (pd, _server):
        check_turn(pd, TURN, pd.chat(TURN.messages, **pd.copy_way))
    return count


def first_example(asked: Asked) -> str:
    return str(asked.json["messages"][1]["content"])


def test_a_right_turn_is_asked_for_once(deploy: Deploy) -> None:
    assert check_a_turn(deploy, lambda asked, count: None) == 1


def test_an_earlier_answer_in_every_such_conversation_is_lost_context(deploy: Deploy) -> None:
    with pytest.raises(ProbeFailure) as failed:
        check_a_turn(deploy, lambda asked, count: first_example(asked))
    finding = failed.value.finding
    assert finding.what == "message 6 of the conversation got the answer to an earlier one"
    assert sum("in a fresh conversation of that length too" in line for line in finding.evidence) == 2


def test_an_earlier_answer_that_fresh_conversations_do_not_give_is_undecided(deploy: Deploy) -> None:
    with pytest.raises(Inconclusive):
        check_a_turn(deploy, lambda asked, count: first_example(asked) if count != 4 else None)


def test_nonsense_in_a_turn_is_undecided_at_once(deploy: Deploy) -> None:
    with pytest.raises(Inconclusive):
        check_a_turn(
            deploy, lambda asked, count: "I don't know" if count < 3 else pytest.fail("asked too much")
        )
