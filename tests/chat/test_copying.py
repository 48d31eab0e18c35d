"""The codes of the oracle: unlike each other, so that a slip of a model's is nobody else's code."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from pytest_pdserve.chat import (
    COPY_PROMPT_TOKENS,
    Copying,
    chat_request,
    first_code,
    new_copying,
    new_copyings,
)


def shares_run(one: str, other: str) -> bool:
    return any(one[at : at + 3] in other for at in range(4))


def agreeing_places(one: str, other: str) -> int:
    return sum(left == right for left, right in zip(one, other, strict=True))


@pytest.mark.parametrize("seed", range(5))
def test_codes_have_six_different_digits_and_no_common_run(seed: int) -> None:
    source = random.Random(seed)
    for _ in range(100):
        copying = new_copying(source)
        codes = (copying.code, *copying.examples)
        assert len(codes) == 4
        for code in codes:
            assert len(set(code)) == len(code) == 6
            assert code.isdigit()
            assert code[0] != "0"
        assert not any(shares_run(*pair) for pair in combinations(codes, 2))


def test_codes_of_one_batch_differ_in_three_places_at_least() -> None:
    batch = new_copyings(random.Random(1), 64)
    codes = [code for copying in batch for code in (copying.code, *copying.examples)]
    assert len(codes) == 256
    assert max(agreeing_places(*pair) for pair in combinations(codes, 2)) == 3


def test_room_for_a_high_ladder_and_a_long_conversation() -> None:
    assert len(new_copyings(random.Random(2), 300)) == 300
    assert len(new_copying(random.Random(3), examples=60).examples) == 60


def test_too_many_is_an_error_and_no_endless_loop() -> None:
    with pytest.raises(ValueError, match="not so many codes"):
        new_copying(random.Random(4), examples=1000)


def test_the_source_decides() -> None:
    assert new_copying(random.Random(5)) == new_copying(random.Random(5))
    assert new_copying(random.Random(5)) != new_copying(random.Random(6))


def test_the_conversation_ends_with_the_code() -> None:
    copying = Copying(code="481526", examples=("903174", "265819"))
    assert copying.messages == [
        {"role": "user", "content": "code: 903174"},
        {"role": "assistant", "content": "903174"},
        {"role": "user", "content": "code: 265819"},
        {"role": "assistant", "content": "265819"},
        {"role": "user", "content": "code: 481526"},
    ]


def test_a_prompt_keeps_its_announced_size() -> None:
    messages = new_copying(random.Random(7)).messages
    request = chat_request("m", messages, max_tokens=16, temperature=0.0, stream=True)
    assert request.most_prompt_tokens <= COPY_PROMPT_TOKENS


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("481526", "481526"),
        (" code: 481526.\ncode: 903174", "481526"),
        ("48152", None),
        ("4815267", "4815267"),
        ("٤٨١٥٢٦", None),
        ("", None),
    ],
)
def test_first_code(text: str, found: str | None) -> None:
    assert first_code(text) == found
    assert Copying(code="481526", examples=()).copied(text) == (found == "481526")
