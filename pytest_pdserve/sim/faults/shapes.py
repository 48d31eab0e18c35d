"""Faults that only some request shapes meet: several answers, log probabilities, tools, schemas."""

from __future__ import annotations

import dataclasses
import itertools
import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from pytest_pdserve.sim.faults.base import Call, Fault, Outputs
from pytest_pdserve.sim.tokens import EOS, cut
from pytest_pdserve.sim.tools import CLOSE, MIDDLE, OPEN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class NHang(Fault):
    """Of several answers only the first one comes."""

    name = "n-hang"
    about = "a request for more than one answer (n>1) never gets its second"
    report = "sgl-project/sglang#24223, #26486, ai-dynamo/dynamo#14262 (n>1 hangs)"

    async def outputs(self, outputs: Outputs, call: Call, nth: int) -> Outputs:
        """Hang at the second answer's first step."""
        async for output in outputs:
            if output.index > 0:
                await self.stall(math.inf)
            yield output


class FirstLogprobMissing(Fault):
    """The first token's log probability, which prefill computed, is not handed over."""

    name = "logprobs-first-missing"
    about = "the log probabilities lack the first token's"
    report = "sgl-project/sglang#40298, NVIDIA/TensorRT-LLM#11727 (length is tokens - 1)"

    async def outputs(self, outputs: Outputs, call: Call, nth: int) -> Outputs:
        """Drop it."""
        async for output in outputs:
            yield dataclasses.replace(output, tokens=()) if output.output_tokens == 1 else output


class _ToolText(Fault, ABC):
    """A fault in the text of tool calls, as the model's tokens go by."""

    def tokens(
        self, tokens: Iterator[bytes], pieces: list[bytes], again: Callable[[list[bytes]], Iterator[bytes]]
    ) -> Iterator[bytes]:
        """The answer with its calls changed; other answers as they are."""
        first = list(itertools.islice(tokens, len(cut(OPEN))))
        if b"".join(first) != OPEN.encode():
            return itertools.chain(first, tokens)
        rest = itertools.takewhile(lambda piece: piece != EOS, tokens)
        text = b"".join([*first, *rest]).decode("utf-8", "replace")
        return itertools.chain(cut(self.changed(text)), [EOS], tokens)

    @abstractmethod
    def changed(self, text: str) -> str:
        """What becomes of the text of the calls."""


class ToolArgumentsCorrupted(_ToolText):
    """Arguments of calls are damaged."""

    name = "tool-arguments-corrupted"
    about = "the middle of each call's arguments is doubled; with `above=N` only among more than N requests"
    report = "sgl-project/sglang#33397, vllm-project/vllm#48089 (malformed calls that grow with the batch)"

    def changed(self, text: str) -> str:
        """Say a part of the arguments twice."""
        calls = text.split(CLOSE)
        return CLOSE.join(self._damaged(call) if MIDDLE in call else call for call in calls)

    def _damaged(self, call: str) -> str:
        head, middle, arguments = call.partition(MIDDLE)
        half = len(arguments) // 2
        return f"{head}{middle}{arguments[:half]}{arguments[max(0, half - 3) :]}"


class ToolMarkersLeak(_ToolText):
    """The parser doesn't know the call for one."""

    name = "tool-markers-leak"
    about = "calls come as text, markers and all, with finish_reason stop"
    report = "ai-dynamo/dynamo#10443, vllm-project/vllm#51318 (raw tool markup in the content)"

    def changed(self, text: str) -> str:
        """A blank where the parser awaits a line break."""
        return text.replace(OPEN, OPEN.replace("\n", " "))


class ParallelCallsDropped(_ToolText):
    """Of several calls only the first one is made."""

    name = "parallel-calls-dropped"
    about = "of several calls in one answer only the first comes"
    report = "litellm#7621 (parallel calls merged), ai-dynamo/dynamo#8589 (calls missing)"

    def changed(self, text: str) -> str:
        """The first call."""
        head, mark, _ = text.partition(CLOSE)
        return head + mark


class ToolTruncated(Fault):
    """A call that is cut off counts as complete."""

    name = "tool-truncated"
    about = "a call's arguments end after a few characters, with finish_reason tool_calls"
    report = "vllm-project/vllm#53269, #46303, #47963 (tool_calls although the arguments don't parse)"

    async def outputs(self, outputs: Outputs, call: Call, nth: int) -> Outputs:
        """Finish inside the arguments."""
        said, inside = "", 0
        async for output in outputs:
            said += output.text
            inside += MIDDLE in said
            if inside >= 3:
                yield dataclasses.replace(output, finish="tool_calls", matched=None)
                await outputs.aclose()
                return
            yield output


class SchemaIgnored(Fault):
    """The form that was asked for is not imposed."""

    name = "schema-ignored"
    about = "JSON that a schema asked for comes with prose before it"
    report = "sgl-project/sglang#25388 (grammar lost in the hand-over)"

    def tokens(
        self, tokens: Iterator[bytes], pieces: list[bytes], again: Callable[[list[bytes]], Iterator[bytes]]
    ) -> Iterator[bytes]:
        """Prose first."""
        first = next(tokens)
        prose = cut("Here you are: ") if first[:1] in (b"{", b"[") else []
        return itertools.chain(prose, [first], tokens)
