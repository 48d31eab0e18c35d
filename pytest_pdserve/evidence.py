"""What was measured around something that went wrong, as plain data: observe/ gathers it, judge/ concludes from it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_pdserve.engines import Meaning
    from pytest_pdserve.target import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one service showed at one moment. A meaning that is not in `values` is unknown, never 0."""

    at: float
    """Monotonic seconds."""
    values: Mapping[Meaning, float]
    problem: str = ""
    """Why nothing could be read, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """One service, watched for a moment: how it answered a cheap question, and readings in order of time."""

    name: str
    """What people call it: `router`, `prefill 2`."""
    role: Role
    problem: str
    """Why it doesn't answer as a service that is up does, in one line; empty when it does."""
    seconds: float | None
    """How long its answer took; None if none came."""
    reached: bool
    """Whether any answer came, with whatever status."""
    readings: tuple[Reading, ...] = ()
    current: bool = True
    """Whether its gauges tell of the moment; else what stands still in them may only not have been written anew."""

    def now(self, meaning: Meaning) -> float | None:
        """The latest value; None where it is unknown."""
        return self.readings[-1].values.get(meaning) if self.readings else None

    def moved(self, meaning: Meaning) -> float | None:
        """How far the value went from the first reading to the last; None where it is unknown in either."""
        if len(self.readings) < 2:
            return None
        first, last = (self.readings[place].values.get(meaning) for place in (0, -1))
        return None if first is None or last is None else last - first

    def always(self, meaning: Meaning) -> float | None:
        """The least value of a gauge in all readings; None where it is unknown in any."""
        values = [reading.values.get(meaning) for reading in self.readings]
        known = [value for value in values if value is not None]
        return min(known) if known and len(known) == len(values) else None


class Through(StrEnum):
    """How far in a canary was sent."""

    ENTRY = "the entry"
    ROUTER = "the router"
    PAIR = "a prefill and a decode directly"
    PREFILL = "a prefill alone"
    DECODE = "a decode alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """One canary: a small known request with its own bound, sent while or after something went wrong."""

    through: Through
    reused: bool
    """Whether it went over a connection that had served before."""
    services: tuple[str, ...]
    """The services that it was sent to, by name."""
    completed: bool
    hung: bool
    seconds: float
    """Until it was answered, or given up."""
    reason: str = ""
    """Why it did not complete, in one line."""
    prefill_done: bool | None = None
    """Of a pair asked directly: whether prefill answered its part whole; None elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the services showed, and how canaries fared. Empty where nothing could be looked at."""

    watched: tuple[Watched, ...] = ()
    hops: tuple[Hop, ...] = ()
    usual: float | None = None
    """Seconds that a small answer took before, in this run; None where none was whole."""

    def of(self, role: Role) -> tuple[Watched, ...]:
        """The watched services of one role."""
        return tuple(service for service in self.watched if service.role is role)

    def through(self, through: Through, *, reused: bool = False) -> tuple[Hop, ...]:
        """The canaries that went one way."""
        return tuple(hop for hop in self.hops if hop.through is through and hop.reused is reused)
