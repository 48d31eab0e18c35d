"""What an engine counts, and where each of its requests stands: the source of its gauges and counters."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


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
    fetches: int = 0
    bootstrap_failed: int = 0
    transfer_failed: int = 0


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
