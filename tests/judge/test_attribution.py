"""From evidence to a layer: each rule where it applies, and where something keeps it from applying."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_pdserve.engines import Meaning
from pytest_pdserve.evidence import Hop, Reading, Surroundings, Through, Watched
from pytest_pdserve.judge import Sureness
from pytest_pdserve.judge.attribution import RULES, Kind, Layer, Pace, Symptom, attribute
from pytest_pdserve.judge.attribution.plateaus import plateau
from pytest_pdserve.judge.attribution.ways import Fate, fate
from pytest_pdserve.target import Role

HUNG = Symptom(kind=Kind.HUNG, seconds=30, waited_for="headers", lag=0.002)
PROXIED = replace(HUNG, proxied=True)
SLOW = Symptom(kind=Kind.SLOW, seconds=4.0, lag=0.002)
QUIET = {Meaning.RUNNING: 0, Meaning.WAITING: 0, Meaning.TRANSFERRING: 0, Meaning.TOKENS_OUT: 900}


def watched(role: Role, *readings: dict[Meaning, float], name: str = "", problem: str = "") -> Watched:
    return Watched(
        name=name or str(role),
        role=role,
        problem=problem,
        seconds=None if problem else 0.003,
        reached=not problem,
        readings=tuple(Reading(at=100.0 + place, values=values) for place, values in enumerate(readings)),
    )


def worker(role: Role, before: dict[Meaning, float], **then: float) -> Watched:
    after = {**before, **{Meaning[name.upper()]: value for name, value in then.items()}}
    return watched(role, {**QUIET, **before}, {**QUIET, **after})


def hops(
    through: Through,
    number: int = 3,
    *,
    ok: bool,
    took: float = 0.2,
    pair: tuple[str, ...] = (),
    **more: bool,
) -> tuple[Hop, ...]:
    return tuple(
        Hop(
            through=through,
            reused=more.get("reused", False),
            services=pair or (str(through),),
            completed=ok,
            hung=not ok,
            seconds=took if ok else 5.0,
            prefill_done=more.get("prefill_done"),
        )
        for _ in range(number)
    )


IDLE = (worker(Role.PREFILL, {}), worker(Role.DECODE, {}))
ENTRY_HANGS, ENTRY_ANSWERS = hops(Through.ENTRY, ok=False), hops(Through.ENTRY, ok=True)
ROUTER_HANGS, ROUTER_ANSWERS = hops(Through.ROUTER, ok=False), hops(Through.ROUTER, ok=True)
PAIR_HANGS, PAIR_ANSWERS = hops(Through.PAIR, ok=False), hops(Through.PAIR, ok=True)
KEPT_HANGS = hops(Through.ENTRY, 1, ok=False, reused=True)


def pairs(**fates: bool) -> tuple[Hop, ...]:
    """`p1_d2=False`: canaries to prefill 1 with decode 2 hung."""
    return tuple(
        hop
        for name, ok in fates.items()
        for hop in hops(Through.PAIR, 2, ok=ok, pair=(f"prefill {name[1]}", f"decode {name[4]}"))
    )


CASES = {
    "proxy": (PROXIED, Surroundings(hops=ENTRY_HANGS + ROUTER_ANSWERS), "proxy", Layer.PROXY, "shown"),
    "proxy, one canary each": (
        PROXIED,
        Surroundings(hops=ENTRY_HANGS[:1] + ROUTER_ANSWERS[:1]),
        "proxy",
        Layer.PROXY,
        "likely",
    ),
    "kept connections through a proxy": (
        replace(PROXIED, reused=True),
        Surroundings(watched=IDLE, hops=ENTRY_ANSWERS + KEPT_HANGS + ROUTER_ANSWERS),
        "connection reuse",
        Layer.PROXY,
        "shown",
    ),
    "kept connections, gauges unknown": (
        replace(HUNG, reused=True),
        Surroundings(hops=ENTRY_ANSWERS + KEPT_HANGS),
        "connection reuse",
        Layer.ROUTER,
        "likely",
    ),
    "router": (HUNG, Surroundings(hops=ENTRY_HANGS + PAIR_ANSWERS), "router", Layer.ROUTER, "shown"),
    "one pair of four": (
        HUNG,
        Surroundings(hops=pairs(p1_d1=False, p1_d2=True, p2_d1=True, p2_d2=True)),
        "one pair",
        Layer.KV_TRANSFER,
        "shown",
    ),
    "every pair with one decode": (
        HUNG,
        Surroundings(hops=pairs(p1_d1=True, p1_d2=False, p2_d1=True, p2_d2=False)),
        "one pair",
        Layer.DECODE,
        "shown",
    ),
    "every pair with one prefill": (
        HUNG,
        Surroundings(hops=pairs(p1_d1=False, p1_d2=False, p2_d1=True, p2_d2=True)),
        "one pair",
        Layer.PREFILL,
        "shown",
    ),
    "both alone go well": (
        HUNG,
        Surroundings(
            hops=ENTRY_HANGS
            + PAIR_HANGS
            + hops(Through.PREFILL, 2, ok=True)
            + hops(Through.DECODE, 2, ok=True)
        ),
        "inside the pair",
        Layer.KV_TRANSFER,
        "shown",
    ),
    "decode alone fails": (
        HUNG,
        Surroundings(
            hops=ENTRY_HANGS
            + PAIR_HANGS
            + hops(Through.PREFILL, 2, ok=True)
            + hops(Through.DECODE, 2, ok=False)
        ),
        "inside the pair",
        Layer.DECODE,
        "shown",
    ),
    "prefill did its part": (
        HUNG,
        Surroundings(hops=ENTRY_HANGS + hops(Through.PAIR, ok=False, prefill_done=True)),
        "inside the pair",
        Layer.DECODE,
        "likely",
    ),
    "decode makes no token": (
        HUNG,
        Surroundings(watched=(IDLE[0], worker(Role.DECODE, {Meaning.RUNNING: 1}))),
        "decode stands still",
        Layer.DECODE,
        "shown",
    ),
    "decode waits although nothing runs": (
        HUNG,
        Surroundings(watched=(IDLE[0], worker(Role.DECODE, {Meaning.WAITING: 1}))),
        "decode doesn't begin",
        Layer.DECODE,
        "shown",
    ),
    "KV on its way": (
        HUNG,
        Surroundings(
            watched=(
                worker(Role.PREFILL, {Meaning.TRANSFERRING: 1}),
                worker(Role.DECODE, {Meaning.TRANSFERRING: 1}),
            )
        ),
        "transfer stuck",
        Layer.KV_TRANSFER,
        "shown",
    ),
    "KV on its way, as decode alone says": (
        HUNG,
        Surroundings(watched=(IDLE[0], worker(Role.DECODE, {Meaning.TRANSFERRING: 1}))),
        "transfer stuck",
        Layer.KV_TRANSFER,
        "likely",
    ),
    "bootstrap": (
        HUNG,
        Surroundings(
            watched=(
                worker(Role.PREFILL, {Meaning.BOOTSTRAPPING: 1}),
                worker(Role.DECODE, {Meaning.BOOTSTRAPPING: 1}),
            )
        ),
        "bootstrap stuck",
        Layer.KV_TRANSFER,
        "shown",
    ),
    "prompts wait": (
        HUNG,
        Surroundings(
            watched=(worker(Role.PREFILL, {Meaning.WAITING: 2, Meaning.PROMPT_COMPUTED: 7}), IDLE[1])
        ),
        "prefill stands still",
        Layer.PREFILL,
        "shown",
    ),
    "KV memory full": (
        HUNG,
        Surroundings(
            watched=(
                IDLE[0],
                worker(Role.DECODE, {Meaning.KV_USAGE: 0.99, Meaning.WAITING: 3}, tokens_out=999),
            )
        ),
        "capacity",
        Layer.DECODE,
        "likely",
    ),
    "nothing runs": (HUNG, Surroundings(watched=IDLE), "upstream of the engines", Layer.ROUTER, "likely"),
    "decode dead": (
        HUNG,
        Surroundings(watched=(IDLE[0], watched(Role.DECODE, problem="connection refused"))),
        "worker unreachable",
        Layer.DECODE,
        "shown",
    ),
    "one decode of two dead": (
        HUNG,
        Surroundings(
            watched=(*IDLE, watched(Role.DECODE, name="decode 2", problem="connection refused")),
        ),
        "worker unreachable",
        Layer.DECODE,
        "likely",
    ),
    "no connection": (
        replace(HUNG, waited_for="connect"),
        Surroundings(watched=(watched(Role.ROUTER, problem="no answer to the TCP connection attempt"),)),
        "entry unreachable",
        Layer.ROUTER,
        "shown",
    ),
    "no name": (
        replace(HUNG, waited_for="resolve"),
        Surroundings(),
        "entry unreachable",
        Layer.CLIENT,
        "likely",
    ),
    "client late": (replace(HUNG, lag=20), Surroundings(), "client late", Layer.CLIENT, "shown"),
    "the server's own words": (
        replace(HUNG, kind=Kind.FAILED, blamed=Layer.KV_TRANSFER, told="Decode transfer failed"),
        Surroundings(),
        "said by the server",
        Layer.KV_TRANSFER,
        "likely",
    ),
    "slow through the proxy only": (
        replace(SLOW, proxied=True),
        Surroundings(hops=hops(Through.ENTRY, ok=True, took=3.9) + hops(Through.ROUTER, ok=True, took=0.1)),
        "proxy",
        Layer.PROXY,
        "shown",
    ),
    "second token late": (
        replace(SLOW, tokens=9, pace=Pace(ttft=0.3, second_token=3.0, itl=0.05)),
        Surroundings(),
        "late second token",
        Layer.KV_TRANSFER,
        "likely",
    ),
    "all tokens slow": (
        replace(SLOW, tokens=8, pace=Pace(ttft=0.3, second_token=0.5, itl=0.5)),
        Surroundings(),
        "decode slow",
        Layer.DECODE,
        "likely",
    ),
    "long prompt": (
        replace(SLOW, pace=Pace(ttft=3.9, second_token=0.01, itl=0.01, prompt_tokens=5000)),
        Surroundings(usual=0.1),
        "long prompts slow",
        Layer.KV_TRANSFER,
        "likely",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_layer_follows_from_the_evidence(case):
    symptom, around, rule, layer, sureness = case
    found = attribute(symptom, around)
    assert (found.rule, found.layer, found.sureness) == (rule, layer, sureness)
    assert found.because
    assert not (found.would_decide and found.sureness is Sureness.SHOWN)


def test_every_rule_has_a_case():
    assert {rule.name for rule in RULES} == {case[2] for case in CASES.values()}


BUSY_DECODE = worker(Role.DECODE, {Meaning.RUNNING: 4}, tokens_out=999)


@pytest.mark.parametrize(
    ("symptom", "around"),
    [
        (HUNG, Surroundings()),
        (PROXIED, Surroundings(hops=ENTRY_HANGS + ROUTER_HANGS)),
        (PROXIED, Surroundings(hops=ENTRY_HANGS[:2] + ENTRY_ANSWERS[:1] + ROUTER_ANSWERS)),
        (PROXIED, Surroundings(hops=ENTRY_HANGS + ROUTER_ANSWERS, usual=4.0)),
        (HUNG, Surroundings(hops=ENTRY_ANSWERS + KEPT_HANGS)),
        (HUNG, Surroundings(hops=ENTRY_HANGS + PAIR_HANGS)),
        (HUNG, Surroundings(watched=(IDLE[0], BUSY_DECODE))),
        (HUNG, Surroundings(watched=(IDLE[0], watched(Role.DECODE, {}, {})))),
        (HUNG, Surroundings(watched=(IDLE[0],))),
        (HUNG, Surroundings(watched=(IDLE[0], watched(Role.DECODE, QUIET)))),
        (replace(HUNG, tokens=7, waited_for="token 8"), Surroundings(watched=IDLE)),
        (HUNG, Surroundings(watched=(watched(Role.DECODE, problem="no answer"),))),
        (
            HUNG,
            Surroundings(watched=(IDLE[0], watched(Role.DECODE, problem="no answer")), hops=ENTRY_ANSWERS),
        ),
        (replace(HUNG, kind=Kind.WRONG), Surroundings(watched=IDLE, hops=ENTRY_HANGS + PAIR_ANSWERS)),
        (SLOW, Surroundings(hops=hops(Through.ENTRY, ok=True, took=0.1) + hops(Through.PAIR, ok=True))),
        (replace(SLOW, pace=Pace(ttft=3.9, second_token=0.01, itl=0.01, prompt_tokens=20)), Surroundings()),
    ],
)
def test_where_nothing_decides_no_layer_is_named(symptom, around):
    found = attribute(symptom, around)
    assert (found.layer, found.sureness, found.rule) == (None, "open", "")


@pytest.mark.parametrize(
    "name",
    [
        "decode makes no token",
        "decode waits although nothing runs",
        "KV on its way",
        "bootstrap",
        "prompts wait",
        "kept connections through a proxy",
    ],
)
def test_gauges_that_may_be_old_show_nothing_for_sure(name):
    symptom, around, rule, layer, sureness = CASES[name]
    assert sureness == "shown"
    old = replace(around, watched=tuple(replace(each, current=False) for each in around.watched))
    found = attribute(symptom, old)
    assert (found.rule, found.layer, found.sureness) == (rule, layer, Sureness.LIKELY)
    assert found.would_decide


def test_canaries_that_fare_differently_on_one_way_are_neither_good_nor_bad():
    mixed = ENTRY_HANGS[:1] + ENTRY_ANSWERS[:1]
    assert fate(HUNG, Surroundings(hops=mixed), mixed) is Fate.MIXED


def test_two_sure_rules_that_disagree_leave_neither_sure():
    stuck = worker(Role.DECODE, {Meaning.RUNNING: 1})
    found = attribute(PROXIED, Surroundings(watched=(IDLE[0], stuck), hops=ENTRY_HANGS + ROUTER_ANSWERS))
    assert (found.layer, found.sureness) == (Layer.PROXY, Sureness.LIKELY)
    assert found.against == ("for decode: decode has requests running and makes no token",)


def test_what_was_seen_to_work_is_not_accused_with_certainty():
    around = Surroundings(
        watched=(worker(Role.PREFILL, {Meaning.WAITING: 2, Meaning.PROMPT_COMPUTED: 7}), IDLE[1]),
        hops=hops(Through.PREFILL, 2, ok=True),
    )
    found = attribute(HUNG, around)
    assert (found.layer, found.sureness) == (Layer.PREFILL, Sureness.LIKELY)
    assert "prefill alone: 2 canaries answered in 0.20 s" in found.against


def test_what_is_ruled_out_says_why():
    found = attribute(PROXIED, Surroundings(hops=ENTRY_HANGS + ROUTER_HANGS + PAIR_HANGS))
    assert found.ruled_out == (
        "client (late by 2 ms at most)",
        "proxy (prefill and decode asked directly do the same)",
        "router (prefill and decode asked directly do the same)",
    )


def test_tokens_that_came_rule_prefill_and_transfer_out():
    found = attribute(replace(HUNG, tokens=7), Surroundings())
    assert [line.partition(" (")[0] for line in found.ruled_out] == ["client", "prefill", "KV transfer"]


@pytest.mark.parametrize(
    ("duration", "found"),
    [(60.3, "nginx"), (300.4, "SGLang's bootstrap"), (59, None), (63, None), (45, None)],
)
def test_plateaus(duration, found):
    line = plateau(duration)
    assert (found in line) if found and line else line is found
