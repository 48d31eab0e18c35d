"""What a rule may say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_pdserve.evidence import Surroundings
    from pytest_pdserve.judge.attribution.symptom import Layer, Symptom
    from pytest_pdserve.judge.probe import Sureness


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """One rule's answer: a layer, how sure, and the lines that led there, the telling one first."""

    layer: Layer
    sureness: Sureness
    because: tuple[str, ...]
    would_decide: str = ""
    """What to measure to be sure; empty when it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One way from evidence to a layer."""

    name: str
    needs: str
    concludes: str
    judge: Callable[[Symptom, Surroundings], Conclusion | None]
    """None when the evidence isn't there, or says otherwise."""
