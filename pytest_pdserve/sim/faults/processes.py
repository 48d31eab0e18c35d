"""Faults of whole processes: dead, stopped, restarted. The starter's process strikes them, not the services."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, ClassVar

from pytest_pdserve.sim.faults.base import Call, Fault, FaultError, Scope
from pytest_pdserve.sim.plan import Role, Service
from pytest_pdserve.sim.warden import ONCE, RESTART, Act

if TYPE_CHECKING:
    from collections.abc import Sequence


class ProcessFault(Fault):
    """A fault of all processes of a role, or of the first of them only."""

    act: ClassVar[Act]
    first_only: ClassVar[bool] = False

    def __init__(self, values: Sequence[str], scope: Scope, scale: float = 1.0) -> None:
        super().__init__(values, scope, scale)
        if scope != Scope():
            raise FaultError(f"fault {self.name} strikes processes, not requests: it takes no arguments")

    def struck(self, services: Sequence[Service]) -> list[str]:
        """The names of the services that it strikes."""
        names = [service.name for service in services if service.role in self.roles]
        return names[:1] if self.first_only else names


class PrefillDead(ProcessFault):
    """Every prefill is gone."""

    name = "prefill-dead"
    about = "every prefill is killed; its ports refuse connections"
    report = "sgl-project/sglang#16903, aibrix#2289 (prefill gone, decode waits)"
    roles = (Role.PREFILL,)
    act = Act.KILL


class DecodeDead(ProcessFault):
    """Every decode is gone."""

    name = "decode-dead"
    about = "every decode is killed; its port refuses connections"
    report = "vllm-project/vllm#49238 (decode dies after prefill's restart), sgl-project/sglang#34692"
    act = Act.KILL


class OneDecodeDead(ProcessFault):
    """One of several decodes is gone."""

    name = "one-decode-dead"
    about = "the first decode is killed, the others go on"
    report = "sgl-project/sglang#6263 (one instance dies in xPyD)"
    act = Act.KILL
    first_only = True


class PrefillStopped(ProcessFault):
    """Every prefill stands still."""

    name = "prefill-stopped"
    about = "every prefill is stopped (SIGSTOP): connections are accepted by the system, and nothing comes"
    report = "sgl-project/sglang#29482, kvcache-ai/Mooncake#3688 (a peer alive but stalled)"
    roles = (Role.PREFILL,)
    act = Act.STOP


class DecodeStopped(ProcessFault):
    """Every decode stands still."""

    name = "decode-stopped"
    about = "every decode is stopped (SIGSTOP): connections are accepted by the system, and nothing comes"
    report = "ai-dynamo/nixl#2047 (a peer alive but stalled), NVIDIA/TensorRT-LLM#12471"
    act = Act.STOP


class SilentRestart(Fault):
    """An engine crashes and is started again, and nobody is told."""

    name = ONCE
    about = "at the struck request after REQUESTS the engine ends and is started again, once"
    report = "sgl-project/sglang#33789, smg#2382 (a replaced peer), vllm-project/vllm#53706 (engine restarts)"
    roles = (Role.DECODE, Role.PREFILL)
    arguments = "REQUESTS"
    defaults: ClassVar = (3.0,)

    async def before_first_token(self, call: Call, nth: int) -> None:
        """On decode, end in the middle of the request."""
        self._end(nth)

    async def before_transfer(self, call: Call, nth: int) -> None:
        """On prefill likewise."""
        self._end(nth)

    def _end(self, nth: int) -> None:
        if nth > self.numbers[0]:
            os._exit(RESTART)
