"""Faults of proxies in front of the router."""

from __future__ import annotations

import math
from typing import ClassVar

from pytest_pdserve.sim.faults.base import Call, Fault
from pytest_pdserve.sim.plan import Role


class ProxyTimeout(Fault):
    """The proxy gives up on a silent upstream."""

    name = "proxy-timeout"
    about = "the proxy waits so many seconds for a byte from the router, then answers 504 or breaks off"
    report = "litellm#34374, #31877 (streams cut at 60 s before the first token)"
    roles = (Role.PROXY,)
    arguments = "SECONDS"
    defaults: ClassVar = (60.0,)

    def patience(self) -> float:
        """The time, scaled."""
        return self.numbers[0] * self.scale


class AbortSwallowed(Fault):
    """The proxy reads answers to their end after the client has gone."""

    name = "abort-swallowed"
    about = "a client's disconnect is not passed on: the deployment works on, its KV stays taken"
    report = "litellm#30244, #30245, #37140 (disconnect not propagated)"
    roles = (Role.PROXY,)
    swallows_aborts = True


class StaleKeepAlive(Fault):
    """A connection that was idle is dead, and nobody has said so."""

    name = "stale-keep-alive"
    about = "a request on a connection that was idle for SECONDS gets nothing back"
    report = "LLMKube#459, bolna#1037 (30 s stalls after a pause), litellm#33567"
    roles = (Role.PROXY, Role.ROUTER)
    arguments = "SECONDS"
    defaults: ClassVar = (30.0,)

    async def before_answer(self, call: Call, nth: int) -> None:
        """Hang, when it was idle for so long."""
        if call.reused and call.idle >= self.numbers[0] * self.scale:
            await self.stall(math.inf)
