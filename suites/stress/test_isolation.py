"""Requests that run together don't mix."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_pdserve.chat import COPY_MOST_TOKENS, COPY_PROMPT_TOKENS, new_copyings
from pytest_pdserve.oracles import check_copies

if TYPE_CHECKING:
    from pytest_pdserve.deployment import Deployment


@pytest.mark.needs("copy")
@pytest.mark.concurrency(8)
@pytest.mark.sends(requests=2, prompt_tokens=2 * COPY_PROMPT_TOKENS, output_tokens=2 * COPY_MOST_TOKENS)
def test_own_code_comes_back(pd: Deployment, level: int) -> None:
    """Asked all at once, each request gets its own code, and never one of another request.

    Metadata buffers and KV pages that two requests share have shown other users' text (failures E1, E2, D7).
    """
    copyings = new_copyings(pd.source, level)
    replies = pd.together([copying.messages for copying in copyings], **pd.copy_way)
    check_copies(pd, copyings, [pd.whole(reply) for reply in replies])
