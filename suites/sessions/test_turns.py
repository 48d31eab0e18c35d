"""Conversations keep their context from turn to turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_pdserve.chat import COPY_MAX_TOKENS, COPY_PROMPT_TOKENS, Copying, new_copying
from pytest_pdserve.oracles import check_copies

if TYPE_CHECKING:
    from pytest_pdserve.deployment import Deployment

ROUNDS = 3


@pytest.mark.needs("copy")
@pytest.mark.multi_turn(rounds=ROUNDS)
@pytest.mark.sends(
    requests=2 * ROUNDS,
    prompt_tokens=2 * ROUNDS * 2 * COPY_PROMPT_TOKENS,
    output_tokens=2 * ROUNDS * COPY_MAX_TOKENS,
)
@pytest.mark.parametrize("connection", ["reuse", "fresh"])
def test_each_turn_answers_its_own_message(pd: Deployment, rounds: int, connection: str) -> None:
    """Every turn of one growing conversation gets the code of its own message, not one of an earlier turn.

    Answering an earlier message after a partial prefix hit is how lost context shows (failures I6, I4).
    """
    start = new_copying(pd.source)
    shown = start.examples
    for _ in range(rounds):
        asked = Copying(code=new_copying(pd.source).code, examples=shown)
        reply = pd.chat(asked.messages, max_tokens=COPY_MAX_TOKENS, connection=connection)
        check_copies(pd, [asked], [reply])
        shown = (*shown, asked.code)
