"""Many calls at once, and counting what is sent."""

from __future__ import annotations

import asyncio

import pytest

from pytest_pdserve.load import Sends, together


def test_together_runs_all_at_once_and_keeps_order() -> None:
    async def run() -> list[int]:
        barrier = asyncio.Barrier(5)

        async def call(number: int) -> int:
            await barrier.wait()  # nobody passes unless all five are under way
            await asyncio.sleep(0.01 * (5 - number))
            return number

        calls = [lambda number=number: call(number) for number in range(5)]
        return await asyncio.wait_for(together(calls), 10)

    assert asyncio.run(run()) == [0, 1, 2, 3, 4]


def test_one_that_raises_cancels_the_others_and_raises_as_it_is() -> None:
    cancelled: list[int] = []

    async def run() -> None:
        async def call(number: int) -> None:
            if number == 1:
                await asyncio.sleep(0.01)
                raise KeyError("mine")
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.append(number)
                raise

        await asyncio.wait_for(together([lambda number=number: call(number) for number in range(3)]), 10)

    with pytest.raises(KeyError, match="mine"):
        asyncio.run(run())
    assert sorted(cancelled) == [0, 2]


def test_nothing_together_is_nothing() -> None:
    assert asyncio.run(together([])) == []


ONE = Sends(requests=1, prompt_tokens=100, output_tokens=10)


def test_sends_one_after_the_other() -> None:
    both = ONE + Sends(requests=2, prompt_tokens=5, output_tokens=7, at_once=8)
    assert both == Sends(requests=3, prompt_tokens=105, output_tokens=17, at_once=8)


def test_sends_at_a_level() -> None:
    assert ONE.at_level(4) == Sends(requests=4, prompt_tokens=400, output_tokens=40, at_once=4)


def test_beyond_an_allowance() -> None:
    assert ONE.beyond(ONE) == ""
    assert Sends().beyond(ONE) == ""
    more = Sends(requests=3, prompt_tokens=100, output_tokens=11, at_once=2)
    assert more.beyond(ONE) == "3 requests of 1, 11 output tokens of 10, 2 at once of 1"
