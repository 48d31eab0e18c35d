"""Rules from gauges: what stood still, and where, while a request was open."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pytest_pdserve.engines import Meaning
from pytest_pdserve.judge.attribution.conclusion import Conclusion, Rule
from pytest_pdserve.judge.attribution.symptom import Kind, Layer
from pytest_pdserve.judge.probe import Sureness
from pytest_pdserve.target import Role
from pytest_pdserve.units import seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_pdserve.evidence import Surroundings, Watched
    from pytest_pdserve.judge.attribution.symptom import Symptom

QUEUES: Final = (
    Meaning.RUNNING,
    Meaning.WAITING,
    Meaning.PREFILLING,
    Meaning.BOOTSTRAPPING,
    Meaning.TRANSFERRING,
)
"""The gauges that are all 0 when an engine has nothing to do."""
FULL: Final = 0.95
"""The share of KV memory above which a decode takes nothing more on."""


def idle(around: Surroundings) -> bool | None:
    """Whether prefill and decode ran nothing while they were watched; None when that isn't known of each."""
    workers = around.of(Role.PREFILL) + around.of(Role.DECODE)
    known = all(around.of(role) for role in (Role.PREFILL, Role.DECODE)) and all(
        len(worker.readings) > 1 and worker.always(Meaning.RUNNING) is not None for worker in workers
    )
    if not known:
        return None
    return not any(
        reading.values.get(meaning, 0) > 0
        for worker in workers
        for reading in worker.readings
        for meaning in QUEUES
    ) and not any((worker.moved(Meaning.TOKENS_OUT) or 0) > 0 for worker in workers)


def shows(worker: Watched) -> str:
    """`decode: running 1, transferring 0, tokens out +0 in 1.0 s`: what one worker showed, for people."""
    if not worker.readings:
        return f"{worker.name}: {worker.problem or 'shows no gauges'}"
    first, last = worker.readings[0], worker.readings[-1]
    parts = [f"{meaning} {value:g}" for meaning in QUEUES if (value := last.values.get(meaning)) is not None]
    parts += [
        f"{meaning} +{moved:g}"
        for meaning in (Meaning.TOKENS_OUT, Meaning.PROMPT_COMPUTED)
        if (moved := worker.moved(meaning)) is not None
    ]
    if (usage := worker.now(Meaning.KV_USAGE)) is not None and usage >= FULL:
        parts.append(f"KV {usage:.0%} full")
    over = f" in {seconds(last.at - first.at)}" if last is not first else ""
    return f"{worker.name}: {', '.join(parts)}{over}" if parts else f"{worker.name}: shows no gauges"


def current(around: Surroundings) -> bool:
    """Whether the gauges of every prefill and decode tell of the moment."""
    return all(worker.current for worker in around.of(Role.PREFILL) + around.of(Role.DECODE))


def _as_sure_as_gauges(said: Conclusion, around: Surroundings) -> Conclusion:
    """What follows from gauges is shown only where they tell of the moment."""
    if current(around) or said.sureness is not Sureness.SHOWN:
        return said
    return replace(
        said, sureness=Sureness.LIKELY, would_decide="its log: the engine's gauges may be 30 s old"
    )


def _stands(worker: Watched, meaning: Meaning) -> bool:
    """Whether something was there in every reading, of which there are at least two."""
    return len(worker.readings) > 1 and (worker.always(meaning) or 0) > 0


def _still(worker: Watched) -> bool:
    """Whether it is known that no token came out meanwhile."""
    return worker.moved(Meaning.TOKENS_OUT) == 0


def _decode_still(symptom: Symptom, around: Surroundings) -> Conclusion | None:
    for worker in around.of(Role.DECODE):
        if symptom.kind is Kind.HUNG and _stands(worker, Meaning.RUNNING) and _still(worker):
            return Conclusion(
                layer=Layer.DECODE,
                sureness=Sureness.SHOWN,
                because=(f"{worker.name} has requests running and makes no token", shows(worker)),
            )
    return None


def _decode_waits(symptom: Symptom, around: Surroundings) -> Conclusion | None:
    """What has its KV waits, and nothing runs."""
    for worker in around.of(Role.DECODE):
        waits = _stands(worker, Meaning.WAITING) and not worker.always(Meaning.RUNNING)
        if symptom.kind is not Kind.HUNG or not waits or _full(worker) or worker.now(Meaning.TRANSFERRING):
            continue
        if worker.moved(Meaning.TOKENS_OUT):
            continue
        arrived = worker.always(Meaning.TRANSFERRING) == 0
        return Conclusion(
            layer=Layer.DECODE,
            sureness=Sureness.SHOWN if arrived else Sureness.LIKELY,
            because=(f"in {worker.name} requests wait although nothing runs", shows(worker)),
            would_decide="" if arrived else "whether their KV has arrived, which this engine doesn't show",
        )
    return None


def _transfer_stuck(symptom: Symptom, around: Surroundings) -> Conclusion | None:
    if symptom.kind is not Kind.HUNG:
        return None
    sending = [worker for worker in around.of(Role.PREFILL) if _stuck(worker, Meaning.TRANSFERRING)]
    receiving = [worker for worker in around.of(Role.DECODE) if _stuck(worker, Meaning.TRANSFERRING)]
    if not receiving or not all(worker.readings for worker in around.of(Role.PREFILL)):
        return None
    return Conclusion(
        layer=Layer.KV_TRANSFER,
        sureness=Sureness.SHOWN if sending else Sureness.LIKELY,
        because=("KV is on its way and doesn't arrive", *map(shows, (*sending, *receiving))),
        would_decide="" if sending else "whether prefill still has the KV to send",
    )


def _bootstrap_stuck(symptom: Symptom, around: Surroundings) -> Conclusion | None:
    if symptom.kind is not Kind.HUNG:
        return None
    prefills = [worker for worker in around.of(Role.PREFILL) if _stuck(worker, Meaning.BOOTSTRAPPING)]
    decodes = [worker for worker in around.of(Role.DECODE) if _stuck(worker, Meaning.BOOTSTRAPPING)]
    if not prefills or any(_full(worker) for worker in around.of(Role.DECODE)):
        return None
    if not all(worker.readings for worker in around.of(Role.DECODE)):
        return None
    both = bool(decodes)
    return Conclusion(
        layer=Layer.KV_TRANSFER,
        sureness=Sureness.SHOWN if both else Sureness.LIKELY,
        because=("prefill and decode don't come together (bootstrap)", *map(shows, (*prefills, *decodes))),
        would_decide="" if both else "whether decode ever asked prefill for this request",
    )


def _prefill_stuck(symptom: Symptom, around: Surroundings) -> Conclusion | None:
    for worker in around.of(Role.PREFILL):
        computing = _stands(worker, Meaning.RUNNING) or _stands(worker, Meaning.PREFILLING)
        waiting = _stands(worker, Meaning.WAITING)
        moved = worker.moved(Meaning.PROMPT_COMPUTED)
        if symptom.kind is not Kind.HUNG or not (computing or waiting) or moved:
            continue
        what = (
            "computes a prompt and gets no further" if computing else "has prompts waiting and computes none"
        )
        return Conclusion(
            layer=Layer.PREFILL,
            sureness=Sureness.SHOWN if moved == 0 and not computing else Sureness.LIKELY,
            because=(f"{worker.name} {what}", shows(worker)),
            would_decide=""
            if moved == 0 and not computing
            else "whether a chunk of this prompt takes so long",
        )
    return None


def _capacity(symptom: Symptom, around: Surroundings) -> Conclusion | None:
    for role, layer in ((Role.DECODE, Layer.DECODE), (Role.PREFILL, Layer.PREFILL)):
        for worker in around.of(role):
            queued = _stands(worker, Meaning.WAITING) or _stands(worker, Meaning.BOOTSTRAPPING)
            if _full(worker) and queued and symptom.kind in (Kind.HUNG, Kind.SLOW):
                return Conclusion(
                    layer=layer,
                    sureness=Sureness.LIKELY,
                    because=(
                        f"the KV memory of {worker.name} is full and requests queue for it",
                        shows(worker),
                    ),
                    would_decide="the same with less load",
                )
    return None


def _upstream(symptom: Symptom, around: Surroundings) -> Conclusion | None:
    """Nothing runs anywhere although the request is open."""
    if symptom.kind is not Kind.HUNG or symptom.connecting or symptom.tokens or not idle(around):
        return None
    workers = around.of(Role.PREFILL) + around.of(Role.DECODE)
    return Conclusion(
        layer=symptom.entry,
        sureness=Sureness.LIKELY,
        because=("prefill and decode ran nothing while the request was open", *map(shows, workers)),
        would_decide="the same request one hop further in",
    )


def _stuck(worker: Watched, meaning: Meaning) -> bool:
    return _stands(worker, meaning) and not worker.moved(Meaning.TOKENS_OUT)


def _full(worker: Watched) -> bool:
    return (worker.now(Meaning.KV_USAGE) or 0) >= FULL


def _capped(
    judge: Callable[[Symptom, Surroundings], Conclusion | None],
) -> Callable[[Symptom, Surroundings], Conclusion | None]:
    def judged(symptom: Symptom, around: Surroundings) -> Conclusion | None:
        said = judge(symptom, around)
        return None if said is None else _as_sure_as_gauges(said, around)

    return judged


GAUGE_RULES: Final = (
    Rule(
        name="decode stands still",
        needs="decode's running requests and generated tokens, twice",
        concludes="decode, when requests run and no token is made",
        judge=_capped(_decode_still),
    ),
    Rule(
        name="capacity",
        needs="KV usage and queues",
        concludes="the worker whose KV memory is full while requests queue for it",
        judge=_capped(_capacity),
    ),
    Rule(
        name="transfer stuck",
        needs="the transfer queues of prefill and decode, twice",
        concludes="KV transfer, when requests stay in them",
        judge=_capped(_transfer_stuck),
    ),
    Rule(
        name="bootstrap stuck",
        needs="the bootstrap queues of prefill and decode, twice",
        concludes="KV transfer, when requests stay in them",
        judge=_capped(_bootstrap_stuck),
    ),
    Rule(
        name="decode doesn't begin",
        needs="decode's waiting, running and transferring requests, twice",
        concludes="decode, when requests with their KV wait and nothing runs",
        judge=_capped(_decode_waits),
    ),
    Rule(
        name="prefill stands still",
        needs="prefill's queue and computed tokens, twice",
        concludes="prefill, when prompts are there and none is computed",
        judge=_capped(_prefill_stuck),
    ),
    Rule(
        name="upstream of the engines",
        needs="the gauges of every prefill and decode, twice",
        concludes="the entry, when nothing runs while the request is open",
        judge=_capped(_upstream),
    ),
)
