"""What went wrong, in numbers: the question that attribution answers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Layer(StrEnum):
    """Where something may go wrong, from the client inwards."""

    CLIENT = "client"
    PROXY = "proxy"
    ROUTER = "router"
    PREFILL = "prefill"
    KV_TRANSFER = "KV transfer"
    DECODE = "decode"


class Kind(StrEnum):
    """In what way an answer was not as it should be."""

    HUNG = "hung"
    """It did not come within its deadline."""
    FAILED = "failed"
    """It was refused, broke off, or was no answer."""
    SLOW = "slow"
    """It came whole, and late."""
    WRONG = "wrong"
    """It came whole, and what it says is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """One answer's times in seconds; None where it doesn't carry one."""

    ttft: float | None
    second_token: float | None
    itl: float | None
    """The median gap between tokens."""
    prompt_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptom:
    """One answer that was not as it should be."""

    kind: Kind
    seconds: float
    """How long it took, or was waited for."""
    waited_for: str = "done"
    """What was being waited for at the end: a phase of the wire, `first token`, `token 12`, `[DONE]`, or `done`."""
    reused: bool = False
    """Whether it went over a connection that had served before."""
    proxied: bool = False
    """Whether the entry is a proxy; else it is the router."""
    tokens: int = 0
    """Events with output that came."""
    blamed: Layer | None = None
    """The layer that the server's own words name."""
    told: str = ""
    """Those words."""
    lag: float = 0.0
    """The longest that our own event loop was late meanwhile, in seconds."""
    pace: Pace | None = None

    @property
    def entry(self) -> Layer:
        """The layer that the entry is."""
        return Layer.PROXY if self.proxied else Layer.ROUTER

    @property
    def connecting(self) -> bool:
        """Whether it never came as far as sending the request."""
        return self.waited_for in ("resolve", "connect", "TLS")
