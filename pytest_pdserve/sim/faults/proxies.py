"""Faults of proxies in front of the router."""

from __future__ import annotations

from typing import ClassVar

from pytest_pdserve.sim.faults.base import Fault
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
