"""Rules from canaries: what went well one hop further in, or on another connection."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final

from pytest_pdserve.evidence import Through
from pytest_pdserve.judge.attribution.conclusion import Conclusion, Rule
from pytest_pdserve.judge.attribution.gauges import current, idle
from pytest_pdserve.judge.attribution.symptom import Kind, Layer
from pytest_pdserve.judge.attribution.ways import ENOUGH, Fate, fate, told, way
from pytest_pdserve.judge.probe import Sureness

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_pdserve.evidence import Hop, Surroundings
    from pytest_pdserve.judge.attribution.symptom import Symptom

_ALONE: Final = {Layer.PREFILL: Through.PREFILL, Layer.DECODE: Through.DECODE}


def _proxy(symptom: Symptom, around: Surroundings) -> Conclusion | None:
    if not symptom.proxied or symptom.kind is Kind.WRONG:
        return None
    outer, inner = around.through(Through.ENTRY), around.through(Through.ROUTER)
    if (
        way(symptom, around, Through.ENTRY) is not Fate.BAD
        or way(symptom, around, Through.ROUTER) is not Fate.GOOD
    ):
        return None
    return Conclusion(
        layer=Layer.PROXY,
        sureness=_sure(outer, inner),
        because=(told(inner, "straight to the router"), told(outer, "through the proxy, on new connections")),
    )


def _reuse(symptom: Symptom, around: Surroundings) -> Conclusion | None:
    reused = around.through(Through.ENTRY, reused=True)
    fresh = around.through(Through.ENTRY)
    if not symptom.reused or symptom.kind is Kind.WRONG:
        return None
    if fate(symptom, around, fresh) is not Fate.GOOD or fate(symptom, around, reused) is not Fate.BAD:
        return None
    quiet = idle(around)
    sure = quiet and current(around)
    return Conclusion(
        layer=symptom.entry,
        sureness=Sureness.SHOWN if sure else Sureness.LIKELY,
        because=(
            f"on new connections to the {symptom.entry} it goes well, on a kept one it doesn't",
            told(fresh, "on new connections"),
            told(reused, "on a kept connection"),
            *(["prefill and decode ran nothing meanwhile"] if quiet else []),
        ),
        would_decide="" if sure else "the gauges of prefill and decode while a kept connection hangs",
    )


def _router(symptom: Symptom, around: Surroundings) -> Conclusion | None:
    if symptom.kind is Kind.WRONG:
        return None
    through = Through.ROUTER if symptom.proxied else Through.ENTRY
    outer, pairs = around.through(through), around.through(Through.PAIR)
    if way(symptom, around, Through.ROUTER) is not Fate.BAD or fate(symptom, around, pairs) is not Fate.GOOD:
        return None
    return Conclusion(
        layer=Layer.ROUTER,
        sureness=_sure(outer, pairs),
        because=(told(pairs, "prefill and decode asked directly"), told(outer, "through the router")),
    )


def _pair(symptom: Symptom, around: Surroundings) -> Conclusion | None:
    """Some pairs of a prefill and a decode work and others don't."""
    if symptom.kind is Kind.WRONG:
        return None
    fates = _by_pair(symptom, around)
    bad = [pair for pair, found in fates.items() if found is Fate.BAD]
    good = [pair for pair, found in fates.items() if found is Fate.GOOD]
    if not bad or not good or len(bad) + len(good) < len(fates):
        return None
    lines = [told(_of(around, pair), " with ".join(pair)) for pair in (*bad, *good)]
    for place, layer in ((1, Layer.DECODE), (0, Layer.PREFILL)):
        names = {pair[place] for pair in bad}
        if len(names) == 1 and not any(pair[place] in names for pair in good):
            first = f"every pair with {names.pop()} fails, the others work"
            return Conclusion(layer=layer, sureness=Sureness.SHOWN, because=(first, *lines))
    first = f"only {', '.join(' with '.join(pair) for pair in bad)} fails; each of them works with another"
    return Conclusion(layer=Layer.KV_TRANSFER, sureness=Sureness.SHOWN, because=(first, *lines))


def _inside(symptom: Symptom, around: Surroundings) -> Conclusion | None:
    """Prefill and decode together fail, and one of them alone, or neither."""
    pairs = around.through(Through.PAIR)
    if symptom.kind is Kind.WRONG or fate(symptom, around, pairs) is not Fate.BAD:
        return None
    alone = {layer: around.through(through) for layer, through in _ALONE.items()}
    fates = {layer: fate(symptom, around, hops) for layer, hops in alone.items()}
    lines = (
        told(pairs, "prefill and decode asked directly"),
        *(told(hops, f"{layer} alone") for layer, hops in alone.items() if hops),
    )
    if all(found is Fate.GOOD for found in fates.values()):
        sureness = _sure(*alone.values())
        return Conclusion(layer=Layer.KV_TRANSFER, sureness=sureness, because=lines)
    for layer, other in ((Layer.PREFILL, Layer.DECODE), (Layer.DECODE, Layer.PREFILL)):
        if fates[layer] is Fate.BAD and fates[other] is Fate.GOOD:
            return Conclusion(layer=layer, sureness=_sure(*alone.values()), because=lines)
    if pairs and all(hop.prefill_done for hop in pairs):
        return Conclusion(
            layer=Layer.DECODE,
            sureness=Sureness.LIKELY,
            because=("prefill answered its part, decode didn't", *lines),
            would_decide="decode's transfer queue: if requests stay in it, it is the KV transfer",
        )
    return None


def _by_pair(symptom: Symptom, around: Surroundings) -> dict[tuple[str, ...], Fate]:
    hops = sorted(around.through(Through.PAIR), key=lambda hop: hop.services)
    return {
        pair: fate(symptom, around, list(found))
        for pair, found in groupby(hops, key=lambda hop: hop.services)
    }


def _of(around: Surroundings, pair: tuple[str, ...]) -> list[Hop]:
    return [hop for hop in around.through(Through.PAIR) if hop.services == pair]


def _sure(*ways: Sequence[Hop]) -> Sureness:
    return Sureness.SHOWN if all(len(hops) >= ENOUGH for hops in ways) else Sureness.LIKELY


PATH_RULES: Final = (
    Rule(
        name="one pair",
        needs="canaries to every pair of a prefill and a decode directly",
        concludes="what the failing pairs have in common: one decode, one prefill, or the transfer between two",
        judge=_pair,
    ),
    Rule(
        name="proxy",
        needs="canaries through the entry and straight to the router",
        concludes="proxy, when the entry fails and the router answers",
        judge=_proxy,
    ),
    Rule(
        name="connection reuse",
        needs="canaries on new connections and on a kept one, the gauges meanwhile",
        concludes="the entry, when it fails on kept connections only and the engines ran nothing",
        judge=_reuse,
    ),
    Rule(
        name="router",
        needs="canaries through the router and to a pair directly",
        concludes="router, when it fails and the pair answers",
        judge=_router,
    ),
    Rule(
        name="inside the pair",
        needs="canaries to a pair directly and, where the engine permits, to prefill and decode alone",
        concludes="the one that fails alone; KV transfer, when both alone go well",
        judge=_inside,
    ),
)
