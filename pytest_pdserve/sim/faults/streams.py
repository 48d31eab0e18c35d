"""Faults of the stream: it hangs, breaks, ends early, or is not the protocol."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import math
from typing import TYPE_CHECKING, ClassVar

from pytest_pdserve.sim.ask import AskError, Trouble
from pytest_pdserve.sim.faults.base import HOLD, Call, Events, Fault, Outputs
from pytest_pdserve.sim.plan import Role
from pytest_pdserve.sim.tokens import EOS, cut

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class HangBeforeHeaders(Fault):
    """The request is taken and nothing at all comes back."""

    name = "hang-before-headers"
    about = "the connection is accepted, the request read, and not even headers come"
    report = "sgl-project/sglang#29482, #34572 (requests hang, /health 200)"
    roles = (Role.ROUTER, Role.PROXY, Role.PREFILL, Role.DECODE)

    async def before_answer(self, call: Call, nth: int) -> None:
        """Hang."""
        await self.stall(math.inf)


class HangBeforeFirstToken(Fault):
    """Everything is prefilled and handed over, and then decode never leaves its transfer queue."""

    name = "hang-before-first-token"
    about = "headers come, then nothing: prefill is done, decode's transfer queue stays above 0"
    report = "vllm-project/vllm#35943, sgl-project/sglang#33789 (stuck after the KV transfer, /health 200)"

    async def before_first_token(self, call: Call, nth: int) -> None:
        """Hang."""
        await self.stall(math.inf)


class TransferStuck(Fault):
    """Prefill has computed the KV and it never goes over."""

    name = "transfer-stuck"
    about = "prefill's inflight queue and decode's transfer queue stay above 0"
    report = "ai-dynamo/nixl#2047 (a stalled transfer is polled for ever), sgl-project/sglang#28651"
    roles = (Role.PREFILL,)

    async def before_transfer(self, call: Call, nth: int) -> None:
        """Hang."""
        await self.stall(math.inf)


class BootstrapStuck(Fault):
    """Prefill never hears of decode."""

    name = "bootstrap-stuck"
    about = "prefill's bootstrap queue stays above 0: it waits for a decode that waits for it"
    report = "sgl-project/sglang#34692, aibrix#2289, ai-dynamo/dynamo#4855"
    roles = (Role.PREFILL,)

    async def before_bootstrap(self, call: Call, nth: int) -> None:
        """Hang."""
        await self.stall(math.inf)


class HangMidstream(Fault):
    """Decode stops making tokens while its request keeps running."""

    name = "decode-hang-midstream"
    about = "after TOKENS tokens no more come, and decode shows the request as running"
    report = "sgl-project/sglang#30010, NVIDIA/TensorRT-LLM#12542 (deadlock under load)"
    arguments = "TOKENS"
    defaults: ClassVar = (4.0,)

    def tokens(
        self, tokens: Iterator[bytes], pieces: list[bytes], again: Callable[[list[bytes]], Iterator[bytes]]
    ) -> Iterator[bytes]:
        """Hold every further token."""
        yield from itertools.islice(tokens, int(self.numbers[0]))
        while not self.lifted.is_set():
            yield HOLD
        yield from tokens


class EndlessStream(Fault):
    """The answer goes on whatever its limit."""

    name = "endless-stream"
    about = "the stream never comes to its finish reason, whatever max_tokens says"
    report = "sgl-project/sglang#12151 (decode goes on with nonsense), LightLLM#1440 (stop ignored)"

    async def outputs(self, outputs: Outputs, call: Call, nth: int) -> Outputs:
        """Never finish."""
        async for output in outputs:
            yield dataclasses.replace(output, finish=None)
        while not self.lifted.is_set():
            await asyncio.sleep(0.005 * self.scale)
            yield dataclasses.replace(output, text=" and", finish=None)
        yield output


class FinishError(Fault):
    """The engine failed and the status says nothing of it."""

    name = "finish-error"
    about = 'status 200, finish_reason "error", no content'
    report = "smg#2382 (200 with finish_reason error after a peer's restart)"

    async def outputs(self, outputs: Outputs, call: Call, nth: int) -> Outputs:
        """Finish at once."""
        async for output in outputs:
            yield dataclasses.replace(output, text="", output_tokens=0, finish="error", matched=None)
            await outputs.aclose()
            return


class ErrorEvent(Fault):
    """The engine fails after the headers have gone out."""

    name = "error-event"
    about = "after TOKENS steps an error event comes in the 200 stream, then [DONE]"
    report = "vLLM's answer to a failed KV load; ai-dynamo/dynamo (decode killed in mid-stream)"
    arguments = "TOKENS"
    defaults: ClassVar = (2.0,)

    async def outputs(self, outputs: Outputs, call: Call, nth: int) -> Outputs:
        """Fail."""
        steps = 0
        async for output in outputs:
            if steps >= self.numbers[0]:
                await outputs.aclose()
                raise AskError(Trouble.TRANSFER, "Internal server error")
            steps += 1
            yield output


class UsageWrong(Fault):
    """The counts do not fit the answer."""

    name = "usage-wrong"
    about = "completion_tokens is 1 too many"
    report = "sgl-project/sglang#7147 (max_new_tokens=1 returns 2), tt-inference-server#4392"

    async def outputs(self, outputs: Outputs, call: Call, nth: int) -> Outputs:
        """Count one more."""
        async for output in outputs:
            yield dataclasses.replace(output, output_tokens=output.output_tokens + 1)


class StreamDiffers(Fault):
    """Streamed answers lose what unstreamed ones have."""

    name = "stream-differs"
    about = "the second step's text is missing from streamed answers"
    report = "vllm-project/vllm#15274, litellm#20711 (deltas lost in streams only)"

    async def outputs(self, outputs: Outputs, call: Call, nth: int) -> Outputs:
        """Leave one step's text out."""
        steps = 0
        async for output in outputs:
            steps += 1
            yield dataclasses.replace(output, text="") if call.stream and steps == 2 else output


class SplitUtf8(Fault):
    """The detokenizer shows bytes of unfinished characters."""

    name = "split-utf8"
    about = "multi-byte characters that end a token come as replacement characters"
    report = "vllm-project/vllm#57087 (U+FFFD under concurrency)"

    def tokens(
        self, tokens: Iterator[bytes], pieces: list[bytes], again: Callable[[list[bytes]], Iterator[bytes]]
    ) -> Iterator[bytes]:
        """Decode each token for itself."""
        for piece in tokens:
            yield piece if piece == EOS else piece.decode("utf-8", "replace").encode()


class _Wire(Fault):
    """A fault of the bytes on the wire, after so many events."""

    roles = (Role.DECODE, Role.ROUTER, Role.PROXY)
    arguments = "EVENTS"
    defaults: ClassVar = (3.0,)

    async def _sound(self, events: Events) -> Events:
        """The events before the fault; the stream is closed afterwards."""
        passed = 0
        async for event in events:
            if passed >= self.numbers[0]:
                await events.aclose()
                return
            passed += 1
            yield event


class NoDone(_Wire):
    """The stream ends as if it were complete."""

    name = "no-done"
    about = "after EVENTS events the stream ends cleanly, without finish reason and [DONE]"
    report = "open-webui#29628, gpustack#5939, kthena#1423 (truncated stream in a 200)"

    async def events(self, events: Events, call: Call, nth: int) -> Events:
        """End."""
        async for event in self._sound(events):
            yield event


class ResetMidstream(_Wire):
    """The connection is reset."""

    name = "reset-midstream"
    about = "after EVENTS events the connection is reset"
    report = "a worker or a load balancer that dies under an open stream; litellm#34374"

    async def events(self, events: Events, call: Call, nth: int) -> Events:
        """Reset."""
        async for event in self._sound(events):
            yield event
        if call.disconnect is not None:
            await asyncio.sleep(0.02)  # or what was sent would be thrown away with the reset
            call.disconnect()


class InvalidJson(_Wire):
    """An event is no JSON."""

    name = "invalid-json"
    about = "the event after EVENTS events is cut off in its middle"
    report = "sglang-router's own error event in a stream; litellm#20480"

    async def events(self, events: Events, call: Call, nth: int) -> Events:
        """Cut one event."""
        passed = 0
        async for event in events:
            yield event[: len(event) // 2] + b"\n\n" if passed == self.numbers[0] else event
            passed += 1


class Drip(Fault):
    """Everything comes, a byte at a time."""

    name = "drip"
    about = "one byte of the stream every SECONDS seconds"
    report = "a client deadline that each byte renews never ends: the slow-drip case of timeouts"
    roles = (Role.DECODE, Role.ROUTER, Role.PROXY)
    arguments = "SECONDS"
    defaults: ClassVar = (1.0,)

    async def events(self, events: Events, call: Call, nth: int) -> Events:
        """Drip."""
        async for event in events:
            for at in range(len(event)):
                if not self.lifted.is_set():
                    await self.stall(self.numbers[0])
                yield event[at : at + 1]


class HangMidstreamOnWire(_Wire):
    """Whoever passes the stream on stops passing it on."""

    name = "hang-midstream"
    about = "after EVENTS events nothing more is passed on, while the engines are done with it"
    report = "litellm#36429, LLMKube#459 (a proxy that stops serving)"
    roles = (Role.ROUTER, Role.PROXY, Role.DECODE)

    async def events(self, events: Events, call: Call, nth: int) -> Events:
        """Hold the rest."""
        passed = 0
        async for event in events:
            if passed == self.numbers[0]:
                await self.stall(math.inf)
            passed += 1
            yield event


class BufferedStream(Fault):
    """The stream is collected and sent when it is complete."""

    name = "buffered-stream"
    about = "the whole stream comes at once at its end"
    report = "production-stack#777, ai-dynamo/dynamo#13821 (time to first token equals the whole time)"
    roles = (Role.ROUTER, Role.PROXY, Role.DECODE)

    async def events(self, events: Events, call: Call, nth: int) -> Events:
        """Collect."""
        yield b"".join([event async for event in events])


class OneTokenLost(Fault):
    """Answers limited to one token have none."""

    name = "one-token-lost"
    about = "the first token is lost in the hand-over, so that answers of one token are empty"
    report = "tt-inference-server#4392, sgl-project/sglang#40298 (first token missing)"

    async def outputs(self, outputs: Outputs, call: Call, nth: int) -> Outputs:
        """Drop the first step's text."""
        async for output in outputs:
            yield dataclasses.replace(output, text="") if output.output_tokens == 1 else output


_MARKER = cut("<|im_end|>")


class LeakedMarker(Fault):
    """A special token's text shows in the answer."""

    name = "leaked-marker"
    about = "the answer begins with the text of a special token"
    report = "vllm-project/vllm#48089 (raw <|im_start|> under concurrency)"

    def tokens(
        self, tokens: Iterator[bytes], pieces: list[bytes], again: Callable[[list[bytes]], Iterator[bytes]]
    ) -> Iterator[bytes]:
        """Put the marker first."""
        return itertools.chain(_MARKER, tokens)
