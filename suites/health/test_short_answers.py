"""The path works: whole, timely answers through the entry, which no health endpoint can promise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_pdserve.deployment import Deployment

IN_A_ROW = 3
"""Once a restart left a deployment that answered the first request and hung at the second (dynamo issue 504)."""


@pytest.mark.sends(requests=IN_A_ROW, prompt_tokens=IN_A_ROW * 200, output_tokens=IN_A_ROW * 8)
@pytest.mark.parametrize("connection", ["fresh", "reuse"])
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_short_answers_come(pd: Deployment, stream: bool, connection: str) -> None:
    """Three unique 8-token answers in a row, streamed and not, on new connections and on a kept one."""
    for _ in range(IN_A_ROW):
        question = f"Say something about the number {pd.source.randrange(10**6)}."
        reply = pd.chat(question, max_tokens=8, stream=stream, connection=connection)
        assert reply.usage is None or reply.usage.completion <= 8
