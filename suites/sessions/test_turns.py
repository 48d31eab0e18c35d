"""Conversations keep their context from turn to turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_pdserve.chat import COPY_MOST_TOKENS, COPY_PROMPT_TOKENS, Copying, new_copying
from pytest_pdserve.oracles import FRESH_CONVERSATIONS, check_turn

if TYPE_CHECKING:
    from pytest_pdserve.deployment import Deployment

ROUNDS = 3
EXAMPLES = 3
ASKED = 2 + FRESH_CONVERSATIONS
"""Requests of one turn: the turn, and where its answer is wrong, what shows whose mistake it is."""


@pytest.mark.needs("copy")
@pytest.mark.multi_turn(rounds=ROUNDS)
@pytest.mark.sends(
    requests=ASKED * ROUNDS,
    prompt_tokens=ASKED * ROUNDS * 2 * COPY_PROMPT_TOKENS,
    output_tokens=ASKED * ROUNDS * COPY_MOST_TOKENS,
)
@pytest.mark.parametrize("connection", ["reuse", "fresh"])
def test_each_turn_answers_its_own_message(pd: Deployment, rounds: int, connection: str) -> None:
    """Every turn of one growing conversation gets the code of its own message, not one of an earlier turn.

    Answering an earlier message after a partial prefix hit is how lost context shows (failures I6, I4).
    """
    whole = new_copying(pd.source, examples=EXAMPLES + rounds - 1)
    codes = (*whole.examples, whole.code)
    for place in range(EXAMPLES, len(codes)):
        asked = Copying(code=codes[place], examples=codes[:place])
        reply = pd.chat(asked.messages, connection=connection, **pd.copy_way)
        check_turn(pd, asked, reply)
