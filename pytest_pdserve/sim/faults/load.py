"""Faults of load: what goes wrong, or is refused, only when much is asked for, and load that is not shared."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from pytest_pdserve.sim.faults.base import HOLD, Call, Fault
from pytest_pdserve.sim.frontdoor import Refusal, text_response
from pytest_pdserve.sim.plan import Role

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class OverloadRefused(Fault):
    """The router refuses what is too much: not a failure, but what it should do."""

    name = "overload-refused"
    about = (
        "with `above=N`, requests beyond N at once are answered with STATUS; correct behaviour, no failure"
    )
    report = "sgl-project/sglang#39464 (503 and 429 are backpressure, not faults)"
    roles = (Role.ROUTER,)
    arguments = "STATUS"
    defaults: ClassVar = (429.0,)

    async def before_answer(self, call: Call, nth: int) -> None:
        """Refuse."""
        raise Refusal(text_response("", int(self.numbers[0])))


class OverloadDeadlock(Fault):
    """Too many requests at once, and afterwards nothing gets through, however little is asked for."""

    name = "overload-deadlock"
    about = "once more than REQUESTS were in decode at once, no request gets a token any more"
    report = "sgl-project/sglang#30010, NVIDIA/TensorRT-LLM#12542 (deadlock under load)"
    arguments = "REQUESTS"
    defaults: ClassVar = (32.0,)

    def __init__(self, *given: object, **more: object) -> None:
        super().__init__(*given, **more)  # type: ignore[arg-type]
        self._wedged = False

    async def before_first_token(self, call: Call, nth: int) -> None:
        """Hang, once it has been too much."""
        self._wedged = self._wedged or call.concurrency > self.numbers[0]
        if self._wedged:
            await self.stall(math.inf)

    def tokens(
        self, tokens: Iterator[bytes], pieces: list[bytes], again: Callable[[list[bytes]], Iterator[bytes]]
    ) -> Iterator[bytes]:
        """Hold what already runs, too."""
        for piece in tokens:
            while self._wedged and not self.lifted.is_set():
                yield HOLD
            yield piece


class HotSpot(Fault):
    """The router sends everything to the same pair."""

    name = "hot-spot"
    about = "every request goes to the first prefill and the first decode, the others stay idle"
    report = "sgl-project/sglang#14532, vllm-project/router#197, Infera#103 (one worker gets everything)"
    roles = (Role.ROUTER,)
    hot_spot = True


class BreakerAfterRefusals(Fault):
    """The router takes bad requests for bad workers."""

    name = "breaker-after-400s"
    about = "after COUNT refused requests (4xx) in a row the router opens all breakers and answers 503"
    report = "sgl-project/sglang#25811 (4xx opens the breaker)"
    roles = (Role.ROUTER,)
    arguments = "COUNT"
    defaults: ClassVar = (5.0,)

    def refusals(self) -> int | None:
        """So many."""
        return int(self.numbers[0])


class AbortStormWedge(Fault):
    """Requests given up early leave prefill's bootstrap queue in disorder."""

    name = "abort-storm-wedge"
    about = "after COUNT requests were given up before their answer was whole, prefill's bootstrap is wedged"
    report = "sgl-project/sglang#34572, #28651, NVIDIA/TensorRT-LLM#12313 (abort storms, /health 200)"
    roles = (Role.PREFILL,)
    arguments = "COUNT"
    defaults: ClassVar = (16.0,)

    def __init__(self, *given: object, **more: object) -> None:
        super().__init__(*given, **more)  # type: ignore[arg-type]
        self._abandoned = 0

    def abandoned(self, call: Call) -> None:
        """Count."""
        self._abandoned += 1

    async def before_bootstrap(self, call: Call, nth: int) -> None:
        """Hang, once there were too many."""
        if self._abandoned >= self.numbers[0]:
            await self.stall(math.inf)


class PairBroken(Fault):
    """One prefill and one decode can't reach each other, though each reaches others."""

    name = "pair-broken"
    about = "prefill P and decode D (from 0) never come together; each works with the others"
    report = "smg#2382, sgl-project/sglang#6263 (one pair of several fails)"
    arguments = "P,D"
    defaults: ClassVar = (0.0, 0.0)

    async def before_pull(self, call: Call, nth: int) -> None:
        """Hang, when it is this pair."""
        if call.pair == tuple(map(int, self.numbers)):
            await self.stall(math.inf)


class NotEngaged(Fault):
    """Decode does prefill's work again."""

    name = "pd-not-engaged"
    about = "decode computes every prompt itself although its KV came over: right answers, twice the work"
    report = "vllm-project/vllm#27083, #26896, llm-d#1189 (decode recomputes the prompt)"
    recomputes = True


class AbortLeak(Fault):
    """Requests that were given up leave their KV behind."""

    name = "abort-leak"
    about = (
        "the KV of requests that were given up in mid-stream stays taken: decode's usage never falls again"
    )
    report = (
        "vllm-project/vllm#46283, sgl-project/sglang#36926, ai-dynamo/dynamo#7489 (KV leaks after aborts)"
    )
    leaks = True
