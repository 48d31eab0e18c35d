"""What an engine counts, and where each of its requests stands: the source of its gauges and counters."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from pytest_pdserve.sim.histograms import BYTES, TOKENS, Distribution

if TYPE_CHECKING:
    from collections.abc import Iterator


KV_BYTES_PER_TOKEN: Final = 83_000
"""Measured for SmolLM2-135M in float32: 2.6e8 bytes for 3114 tokens."""


class Stage(StrEnum):
    """Where a request stands inside an engine; engines show how many stand where as gauges."""

    BOOTSTRAP = "bootstrap"
    WAITING = "waiting"
    RUNNING = "running"
    INFLIGHT = "inflight"
    PREALLOC = "prealloc"
    TRANSFER = "transfer"
    RETRACTED = "retracted"


@dataclass(slots=True)
class Tally:
    """What an engine has counted since it started, and how many requests stand in each stage."""

    stages: Counter[Stage] = field(default_factory=Counter)
    kv_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    requests: int = 0
    finished_prompt_tokens: int = 0
    finished_output_tokens: int = 0
    """Both only of requests that are done: SGLang counts these then."""
    aborted: int = 0
    retractions: int = 0
    stopped: int = 0
    """Requests that the model or a stop string ended; the others came to their limit."""
    computed_tokens: int = 0
    """Prompt tokens computed here instead of taken over."""
    expired: int = 0
    bootstrap_failed: int = 0
    times: Times = field(default_factory=lambda: Times())
    transfer_failed: int = 0


@dataclass(slots=True)
class Times:
    """What the requests that are done took, in seconds, and how large they were."""

    ttft: Distribution = field(default_factory=Distribution)
    itl: Distribution = field(default_factory=Distribution)
    """Each token's gap, as the mean of its request."""
    e2e: Distribution = field(default_factory=Distribution)
    queue: Distribution = field(default_factory=Distribution)
    """Before anything was computed for it."""
    bootstrap: Distribution = field(default_factory=Distribution)
    transfer: Distribution = field(default_factory=Distribution)
    transfer_bytes: Distribution = field(default_factory=lambda: Distribution(BYTES))
    prompt: Distribution = field(default_factory=lambda: Distribution(TOKENS))
    output: Distribution = field(default_factory=lambda: Distribution(TOKENS))

    def done(
        self, *, began: float, started: float, first: float, ended: float, prompt: int, output: int
    ) -> None:
        """Count one request: when it came, was taken up, had its first token and its last (monotonic seconds)."""
        self.queue.observe(started - began)
        self.ttft.observe(first - began)
        self.e2e.observe(ended - began)
        if output > 1:
            self.itl.observe((ended - first) / (output - 1), output - 1)
        self.prompt.observe(prompt)
        self.output.observe(output)

    def moved(self, seconds: float, size: float) -> None:
        """Count one KV transfer of so many bytes."""
        self.transfer.observe(seconds)
        self.transfer_bytes.observe(size)


class Seat:
    """One request's place in its engine."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._stage: Stage | None = None

    def move(self, stage: Stage | None) -> None:
        """Go to a stage, or leave the engine."""
        if self._stage is not None:
            self._tally.stages[self._stage] -= 1
        if stage is not None:
            self._tally.stages[stage] += 1
        self._stage = stage


@contextmanager
def seated(tally: Tally) -> Iterator[Seat]:
    """Seat a request for as long as the context lasts, however it ends."""
    seat = Seat(tally)
    try:
        yield seat
    finally:
        seat.move(None)
