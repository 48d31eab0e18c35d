"""Faults of load: what goes wrong, or is refused, only when much is asked for, and load that is not shared."""

from __future__ import annotations

import math
from typing import ClassVar

from pytest_pdserve.sim.faults.base import Call, Fault
from pytest_pdserve.sim.frontdoor import Refusal, text_response
from pytest_pdserve.sim.plan import Role


class OverloadRefused(Fault):
    """The router refuses what is too much: not a failure, but what it should do."""

    name = "overload-refused"
    about = (
        "with `above=N`, requests beyond N at once are answered with STATUS; correct behaviour, no failure"
    )
    report = "sglang-router's rate limit (429 beyond its concurrent requests), 503 of a full engine queue"
    roles = (Role.ROUTER,)
    arguments = "STATUS"
    defaults: ClassVar = (429.0,)

    async def before_answer(self, call: Call, nth: int) -> None:
        """Refuse."""
        raise Refusal(text_response("", int(self.numbers[0])))


class OverloadDeadlock(Fault):
    """Too many requests at once, and afterwards nothing gets through, however little is asked for."""

    name = "overload-deadlock"
    about = "once more than REQUESTS were in decode at once, no request gets its first token any more"
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


class HotSpot(Fault):
    """The router sends everything to the same pair."""

    name = "hot-spot"
    about = "every request goes to the first prefill and the first decode, the others stay idle"
    report = "a router's load balancing that sees no load: one worker full, the others idle"
    roles = (Role.ROUTER,)
    hot_spot = True
