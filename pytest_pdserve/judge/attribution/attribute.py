"""From evidence to a layer: all rules in one table, and what follows from those that speak."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pytest_pdserve.evidence import Surroundings, Through
from pytest_pdserve.judge.attribution.gauges import GAUGE_RULES, shows
from pytest_pdserve.judge.attribution.pace import PACE_RULES
from pytest_pdserve.judge.attribution.path import PATH_RULES
from pytest_pdserve.judge.attribution.plateaus import plateau
from pytest_pdserve.judge.attribution.reach import REACH_RULES
from pytest_pdserve.judge.attribution.symptom import Kind, Layer, Symptom
from pytest_pdserve.judge.attribution.ways import Fate, fate, told, way
from pytest_pdserve.judge.probe import Sureness
from pytest_pdserve.target import Role
from pytest_pdserve.units import seconds

if TYPE_CHECKING:
    from pytest_pdserve.judge.attribution.conclusion import Conclusion, Rule

RULES: Final[tuple[Rule, ...]] = (*REACH_RULES, *PATH_RULES, *GAUGE_RULES, *PACE_RULES)
"""Every rule; among equally sure ones an earlier one is believed."""
PUNCTUAL: Final = 0.05
"""Seconds of our own lateness below which the client is ruled out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """Which layer something lies in, as far as the evidence goes; lines for people."""

    layer: Layer | None
    sureness: Sureness
    rule: str = ""
    """The name of the rule that was believed."""
    because: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    """What speaks for another layer."""
    ruled_out: tuple[str, ...] = ()
    would_decide: str = ""


def attribute(symptom: Symptom, around: Surroundings) -> Attribution:
    """The layer that `symptom` lies in. Two rules that are sure of different layers make neither of them sure."""
    spoken = [(rule, said) for rule in RULES if (said := rule.judge(symptom, around)) is not None]
    excluded = ruled_out(symptom, around)
    hints = [hint] if symptom.kind in (Kind.FAILED, Kind.SLOW) and (hint := plateau(symptom.seconds)) else []
    if not spoken:
        return Attribution(
            layer=None,
            sureness=Sureness.OPEN,
            because=(*hints, *_seen(around)),
            ruled_out=tuple(excluded.values()),
        )
    spoken.sort(key=lambda pair: pair[1].sureness is not Sureness.SHOWN)
    rule, said = spoken[0]
    others = [(name, other) for name, other in spoken[1:] if other.layer is not said.layer]
    agreeing = [line for _, other in spoken[1:] if other.layer is said.layer for line in other.because]
    contradicted = any(other.sureness is Sureness.SHOWN for _, other in others) or said.layer in excluded
    sureness = Sureness.LIKELY if contradicted else said.sureness
    return Attribution(
        layer=said.layer,
        sureness=sureness,
        rule=rule.name,
        because=tuple(dict.fromkeys((*said.because, *hints, *agreeing))),
        against=_against(said, others, excluded),
        ruled_out=tuple(line for layer, line in excluded.items() if layer is not said.layer),
        would_decide=said.would_decide,
    )


def _against(
    said: Conclusion, others: list[tuple[Rule, Conclusion]], excluded: dict[Layer, str]
) -> tuple[str, ...]:
    lines = [f"for {other.layer}: {other.because[0]}" for _, other in others if other.layer not in excluded]
    own = [excluded[said.layer]] if said.layer in excluded else []
    return tuple(dict.fromkeys((*own, *lines)))


def ruled_out(symptom: Symptom, around: Surroundings) -> dict[Layer, str]:
    """The layers that were measured to be sound, or without which it is just the same, each with why."""
    found: dict[Layer, str] = {}
    if symptom.lag < PUNCTUAL and symptom.kind is not Kind.WRONG:
        found[Layer.CLIENT] = f"client (late by {seconds(symptom.lag)} at most)"
    if symptom.kind is Kind.WRONG:
        return found
    if symptom.proxied and way(symptom, around, Through.ROUTER) is Fate.BAD:
        found[Layer.PROXY] = "proxy (straight to the router it is the same)"
    if fate(symptom, around, around.through(Through.PAIR)) is Fate.BAD:
        found[Layer.ROUTER] = "router (prefill and decode asked directly do the same)"
        if symptom.proxied:
            found[Layer.PROXY] = "proxy (prefill and decode asked directly do the same)"
    for layer, through in ((Layer.PREFILL, Through.PREFILL), (Layer.DECODE, Through.DECODE)):
        hops = around.through(through)
        if fate(symptom, around, hops) is Fate.GOOD:
            found[layer] = told(hops, f"{layer} alone")
    if symptom.tokens > 1 and symptom.kind in (Kind.HUNG, Kind.FAILED):
        for layer in (Layer.PREFILL, Layer.KV_TRANSFER):
            found.setdefault(layer, f"{layer} ({symptom.tokens} tokens had come)")
    return found


def _seen(around: Surroundings) -> tuple[str, ...]:
    """What was looked at, when nothing follows from it."""
    ways = {
        "through the entry": around.through(Through.ENTRY),
        "straight to the router": around.through(Through.ROUTER),
        "prefill and decode asked directly": around.through(Through.PAIR),
    }
    workers = around.of(Role.PREFILL) + around.of(Role.DECODE)
    problems = [f"{each.name}: {each.problem}" for each in around.watched if each.problem]
    shown = [shows(worker) for worker in workers if worker.readings]
    return (*(told(hops, what) for what, hops in ways.items() if hops), *problems, *shown)
