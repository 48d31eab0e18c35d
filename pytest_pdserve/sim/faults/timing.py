"""Faults of time: everything comes, but late."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, ClassVar

from pytest_pdserve.sim.faults.base import HOLD, Call, Fault, FaultError, Work, number
from pytest_pdserve.sim.plan import Role

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


class ColdStart(Fault):
    """The first requests wait until a time after the start is over; then it is warm."""

    name = "cold-start"
    about = "nothing is answered before so many seconds after the fault is set; then all is well"
    report = "sgl-project/sglang#28737 (38 s first request), NVIDIA/TensorRT-LLM#6085"
    arguments = "SECONDS"
    defaults: ClassVar = (30.0,)

    def __init__(self, *given: object, **more: object) -> None:
        super().__init__(*given, **more)  # type: ignore[arg-type]
        self._began = time.monotonic()

    async def before_first_token(self, call: Call, nth: int) -> None:
        """Wait for the rest of the cold time."""
        left = self.numbers[0] * self.scale - (time.monotonic() - self._began)
        await self.stall(max(0.0, left) / self.scale)


class NeverWarm(Fault):
    """Every first token takes as long as after a cold start."""

    name = "never-warm"
    about = "every first token takes so many seconds, however long the deployment has been up"
    report = "sgl-project/sglang#6411 (24.8 s instead of 2.3 s), LMCache/LMCache#1106"
    arguments = "SECONDS"
    defaults: ClassVar = (20.0,)

    async def before_first_token(self, call: Call, nth: int) -> None:
        """Wait."""
        await self.stall(self.numbers[0])


class Series(Fault):
    """The first answers after a restart take given times, none of which a cold start explains."""

    name = "series"
    about = "seconds to the first token of the 1st, 2nd ... request; inf hangs; a last inf repeats"
    report = "user report: 8 tokens in 17.9, 106.4, 10.5 s and never; near sgl-project/sglang#28737, #6411"
    arguments = "S1,S2,..."

    def _numbers(self, values: Sequence[str]) -> list[float]:
        if not values:
            raise FaultError("fault series needs seconds, such as series=17.9,106.4,10.5,inf")
        return [number(self.name, value) for value in values]

    async def before_first_token(self, call: Call, nth: int) -> None:
        """Wait as long as the series says for this request."""
        beyond = math.inf if self.numbers[-1] == math.inf else 0.0
        await self.stall(self.numbers[nth - 1] if nth <= len(self.numbers) else beyond)


class Drift(Fault):
    """Each request is a little slower than the one before, as when something leaks."""

    name = "drift"
    about = "the n-th struck request's first token comes n times so many seconds later"
    report = "sgl-project/sglang#23020 (worse with every fifty requests), #10110 (capacity shrinks)"
    arguments = "SECONDS"
    defaults: ClassVar = (0.01,)

    async def before_first_token(self, call: Call, nth: int) -> None:
        """Wait in proportion to the number of requests so far."""
        await self.stall(self.numbers[0] * nth)


class LateSecondToken(Fault):
    """The hand-over gap shows only between the first and the second token."""

    name = "late-second-token"
    about = "the first token is in time, the second comes so many seconds later"
    report = "ai-dynamo/dynamo#2552 (time to second token up to 2.7 s at 41 ms between tokens)"
    arguments = "SECONDS"
    defaults: ClassVar = (2.0,)

    def tokens(
        self, tokens: Iterator[bytes], pieces: list[bytes], again: Callable[[list[bytes]], Iterator[bytes]]
    ) -> Iterator[bytes]:
        """Hold the second token."""
        yield next(tokens)
        until = time.monotonic() + self.numbers[0] * self.scale
        while time.monotonic() < until and not self.lifted.is_set():
            yield HOLD
        yield from tokens


class _Slow(Fault):
    """One kind of work takes a multiple of its time."""

    work: ClassVar[Work]
    arguments = "FACTOR"
    defaults: ClassVar = (10.0,)

    def pace(self, work: Work, batch: int) -> float:
        """The factor, for this kind of work."""
        return self.numbers[0] if work is self.work else 1.0


class DecodeSlow(_Slow):
    """Every decode step takes longer."""

    name = "decode-slow"
    about = "every decode step takes so many times as long"
    report = "sgl-project/sglang#18823, NVIDIA/TensorRT-LLM#6085 (graphs or kernels lost after a restart)"
    work = Work.DECODE


class PrefillSlow(_Slow):
    """Every prefill takes longer."""

    name = "prefill-slow"
    about = "every prefill takes so many times as long"
    report = "sgl-project/sglang#6411, ai-dynamo/dynamo#4425"
    work = Work.PREFILL
    roles = (Role.PREFILL,)


class TransferSlow(_Slow):
    """The KV goes over a slow path."""

    name = "transfer-slow"
    about = "every KV transfer takes so many times as long, as over TCP instead of RDMA"
    report = "ai-dynamo/dynamo#1314 (1803 ms instead of 3 ms)"
    work = Work.TRANSFER
    roles = (Role.PREFILL,)
    defaults: ClassVar = (600.0,)


class WaveDip(Fault):
    """Past a batch size the step falls into the next, much slower bucket."""

    name = "wave-dip"
    about = "decode steps take FACTOR times as long with more than BATCH running requests"
    report = "wave quantization: throughput at 96 below that at 80"
    arguments = "BATCH,FACTOR"
    defaults: ClassVar = (80.0, 1.6)

    def pace(self, work: Work, batch: int) -> float:
        """The factor, above the bucket's edge."""
        return self.numbers[1] if work is Work.DECODE and batch > self.numbers[0] else 1.0
