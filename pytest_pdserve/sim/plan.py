"""What a simulated deployment consists of: plain data, handed from process to process as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Dialect(StrEnum):
    """The engine family whose wire behaviour is simulated."""

    SGLANG = "sglang"
    VLLM = "vllm"


class Role(StrEnum):
    """What one process of the deployment does."""

    PROXY = "proxy"
    ROUTER = "router"
    PREFILL = "prefill"
    DECODE = "decode"


class Skill(StrEnum):
    """What the toy model can do: copy and recall from its context, or nothing but random text."""

    COPY = "copy"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Timing:
    """The clock of the simulated engines; every time is multiplied by the plan's time scale, time-outs never shortened.

    The defaults are those of a small, fast model: eight tokens after a short prompt take about 20 ms.
    """

    prefill_tokens_per_s: float = 200_000.0
    prefill_overhead_s: float = 0.001
    prefill_chunk_tokens: int = 8192
    transfer_latency_s: float = 0.001
    transfer_tokens_per_s: float = 2_000_000.0
    decode_step_s: float = 0.002
    decode_step_per_request_s: float = 0.00002
    decode_buckets: tuple[int, ...] = (1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 128, 160, 192, 256)
    """Batch sizes for which a step is prepared, as CUDA graphs are: a batch in between takes as long as the next."""
    first_request_s: float = 0.03
    kv_hold_s: float = 30.0
    """How long a vLLM prefill keeps KV that nobody fetches, as measured."""
    bootstrap_timeout_s: float = 300.0
    """SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT and ..._WAITING_TIMEOUT default to 300 s."""

    def step_s(self, batch: int) -> float:
        """How long one decode step of so many requests takes, before any scaling."""
        padded = next((size for size in self.decode_buckets if size >= batch), batch)
        return self.decode_step_s + self.decode_step_per_request_s * padded


@dataclass(frozen=True, slots=True)
class Service:
    """One process of the deployment and where it listens. Only a prefill has a bootstrap port."""

    name: str
    role: Role
    port: int
    bootstrap_port: int | None = None

    @property
    def url(self) -> str:
        """The service's base URL, without a trailing slash."""
        return f"http://127.0.0.1:{self.port}"


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole deployment. `faults` are texts as `pytest_pdserve.sim.faults` reads them."""

    dialect: Dialect = Dialect.SGLANG
    model: str = "pdserve-toy"
    skill: Skill = Skill.COPY
    seed: int = 0
    time_scale: float = 1.0
    prefill: int = 1
    decode: int = 1
    proxy: bool = False
    faults: tuple[str, ...] = ()
    context_tokens: int = 32_768
    kv_tokens: int = 400_000
    timing: Timing = field(default_factory=Timing)
    services: tuple[Service, ...] = ()
    """Filled in by whoever binds the ports."""

    @property
    def page_tokens(self) -> int:
        """Tokens in one page of the prefix cache: SGLang's for most large models, vLLM's default block."""
        return 16 if self.dialect is Dialect.VLLM else 64

    def timeout(self, seconds: float) -> float:
        """A protocol's time-out: longer where everything takes longer, else as it is in a real deployment."""
        return seconds * max(1.0, self.time_scale)

    def of(self, role: Role) -> tuple[Service, ...]:
        """The services of one role, in order."""
        return tuple(service for service in self.services if service.role is role)
