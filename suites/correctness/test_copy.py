"""Answers are right: a code that only the prompt holds comes back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_pdserve.chat import COPY_MOST_TOKENS, COPY_PROMPT_TOKENS, new_copyings
from pytest_pdserve.oracles import check_copies

if TYPE_CHECKING:
    from pytest_pdserve.deployment import Deployment

CODES = 4


@pytest.mark.needs("copy")
@pytest.mark.sends(
    requests=2 * CODES,
    prompt_tokens=2 * CODES * COPY_PROMPT_TOKENS,
    output_tokens=2 * CODES * COPY_MOST_TOKENS,
)
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_code_comes_back(pd: Deployment, stream: bool) -> None:
    """Each code comes back as the prompt gave it: prefill computed it, the transfer kept it, decode read it."""
    copyings = new_copyings(pd.source, CODES)
    replies = [pd.chat(copying.messages, stream=stream, **pd.copy_way) for copying in copyings]
    check_copies(pd, copyings, replies)
