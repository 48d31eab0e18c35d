"""A stream is whole: one finish reason, honest usage, the terminal event, and nothing after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_pdserve.deployment import Deployment

TOKENS = 48


@pytest.mark.sends(requests=1, prompt_tokens=200, output_tokens=TOKENS)
def test_stream_is_whole(pd: Deployment) -> None:
    """A longer stream ends with its finish reason and [DONE], and counts its tokens right.

    An upstream that dies in mid-stream has been passed on as a clean end of a 200 (failures K7, G5).
    """
    reply = pd.chat(f"Tell a story about the number {pd.source.randrange(10**6)}.", max_tokens=TOKENS)
    if reply.oddities:
        pd.fail(f"the stream departs from the protocol: {reply.oddities[0]}", reply, *reply.oddities[1:4])
    if reply.usage is None:
        # A front that doesn't know stream_options.include_usage leaves it out, and counts nothing.
        return
    if reply.usage.completion > TOKENS:
        pd.fail(f"{reply.usage.completion} output tokens are counted, {TOKENS} were allowed", reply)
    elif reply.finish_reason == "length" and reply.usage.completion != TOKENS:
        pd.fail(f'finish_reason is "length" after {reply.usage.completion} of {TOKENS} tokens', reply)
