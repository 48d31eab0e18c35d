"""How canaries fared, way by way, measured against what was wrong."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from pytest_pdserve.evidence import Through
from pytest_pdserve.judge.attribution.symptom import Kind
from pytest_pdserve.units import count, seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_pdserve.evidence import Hop, Surroundings
    from pytest_pdserve.judge.attribution.symptom import Symptom

ENOUGH: Final = 2
"""Canaries alike on one way that show something; a single one may have met or missed a fault by chance."""
PATIENCE: Final = 3.0
"""A canary that was given less than so many times the usual answer's time shows nothing by not coming."""
QUICK: Final = 1 / 3
SLOW: Final = 0.6
"""Of what was slow: a canary in less than a third of its time went well, one in more than 60 % did not."""


class Fate(StrEnum):
    """How the canaries of one way fared."""

    GOOD = "good"
    BAD = "bad"
    MIXED = "mixed"
    UNKNOWN = "unknown"


def fate(symptom: Symptom, around: Surroundings, hops: Sequence[Hop]) -> Fate:
    """How these canaries fared together; unknown without any that shows something."""
    single = {_fate(symptom, around, hop) for hop in hops} - {Fate.UNKNOWN}
    if len(single) > 1:
        return Fate.MIXED
    return single.pop() if single else Fate.UNKNOWN


def way(symptom: Symptom, around: Surroundings, through: Through) -> Fate:
    """How the canaries fared that went this way on new connections.

    Where the entry is the router, the two are one way.
    """
    hops = around.through(through)
    if through is Through.ROUTER and not symptom.proxied:
        hops = around.through(Through.ENTRY)
    return fate(symptom, around, hops)


def told(hops: Sequence[Hop], what: str) -> str:
    """`straight to the router: 3 canaries answered, 0.02 s`: one line for people."""
    good = [hop.seconds for hop in hops if hop.completed]
    hung = [hop for hop in hops if hop.hung]
    failed = [hop for hop in hops if not hop.completed and not hop.hung]
    parts = []
    if good:
        parts.append(f"{count(len(good), 'canary', 'canaries')} answered in {seconds(max(good))}")
    if hung:
        parts.append(f"{count(len(hung), 'canary', 'canaries')} hung for {seconds(hung[0].seconds)}")
    if failed:
        parts.append(f"{count(len(failed), 'canary', 'canaries')} failed: {failed[0].reason}")
    return f"{what}: {', '.join(parts)}"


def _fate(symptom: Symptom, around: Surroundings, hop: Hop) -> Fate:
    if symptom.kind is Kind.SLOW and hop.completed:
        if hop.seconds <= symptom.seconds * QUICK:
            return Fate.GOOD
        return Fate.BAD if hop.seconds >= symptom.seconds * SLOW else Fate.UNKNOWN
    if hop.completed:
        return Fate.GOOD
    if hop.hung and around.usual is not None and hop.seconds < PATIENCE * around.usual:
        return Fate.UNKNOWN
    return Fate.BAD
