"""Rules from what can't be reached, what the server says itself, and our own lateness."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_pdserve.evidence import Through
from pytest_pdserve.judge.attribution.conclusion import Conclusion, Rule
from pytest_pdserve.judge.attribution.symptom import Kind, Layer
from pytest_pdserve.judge.probe import Sureness
from pytest_pdserve.target import Role
from pytest_pdserve.units import seconds

if TYPE_CHECKING:
    from pytest_pdserve.evidence import Surroundings
    from pytest_pdserve.judge.attribution.symptom import Symptom

BUSY_CLIENT: Final = 0.5
"""The share of a time that our own lateness must make up before it is held responsible."""
LAYERS: Final = {
    Role.PROXY: Layer.PROXY,
    Role.ROUTER: Layer.ROUTER,
    Role.PREFILL: Layer.PREFILL,
    Role.DECODE: Layer.DECODE,
}


def _client_late(symptom: Symptom, around: Surroundings) -> Conclusion | None:
    if symptom.kind is Kind.WRONG or symptom.lag < BUSY_CLIENT * symptom.seconds:
        return None
    return Conclusion(
        layer=Layer.CLIENT,
        sureness=Sureness.SHOWN,
        because=(
            f"this machine's own event loop was late by {seconds(symptom.lag)} of {seconds(symptom.seconds)}",
        ),
    )


def _entry_unreachable(symptom: Symptom, around: Surroundings) -> Conclusion | None:
    """The request never left, because nobody took the connection."""
    if not symptom.connecting:
        return None
    if symptom.waited_for == "resolve":
        return Conclusion(
            layer=Layer.CLIENT,
            sureness=Sureness.LIKELY,
            because=("the entry's name was not resolved",),
            would_decide="the name server's answer on this machine",
        )
    entry = around.of(Role.PROXY if symptom.proxied else Role.ROUTER)
    again = [service for service in entry if not service.reached]
    return Conclusion(
        layer=symptom.entry,
        sureness=Sureness.SHOWN if again else Sureness.LIKELY,
        because=(
            f"no connection to the {symptom.entry} came about ({symptom.waited_for})",
            *(f"asked again: {service.problem}" for service in again),
        ),
        would_decide="" if again else "a second attempt",
    )


def _worker_unreachable(symptom: Symptom, around: Surroundings) -> Conclusion | None:
    """A worker that doesn't answer at all, while others of the deployment do."""
    if symptom.kind is Kind.WRONG:
        return None
    workers = around.of(Role.PREFILL) + around.of(Role.DECODE)
    silent = [worker for worker in workers if not worker.reached]
    others = [service for service in around.watched if service.reached]
    roles = {worker.role for worker in silent}
    if len(roles) != 1 or not others:
        return None
    role = roles.pop()
    if any(hop.completed for hop in around.through(Through.ENTRY)):
        return None  # whatever keeps it from answering us, it does its work
    every = len(silent) == len(around.of(role))
    return Conclusion(
        layer=LAYERS[role],
        sureness=Sureness.SHOWN if every else Sureness.LIKELY,
        because=(
            f"{', '.join(worker.name for worker in silent)} can't be reached, {others[0].name} can",
            *(f"{worker.name}: {worker.problem}" for worker in silent),
        ),
        would_decide="" if every else "which worker this request went to",
    )


def _said(symptom: Symptom, around: Surroundings) -> Conclusion | None:
    if symptom.blamed is None:
        return None
    return Conclusion(
        layer=symptom.blamed,
        sureness=Sureness.LIKELY,
        because=(f"the server says so itself: {symptom.told}",),
        would_decide="that layer's own log",
    )


REACH_RULES: Final = (
    Rule(
        name="client late",
        needs="our own event loop's lateness while the request was open",
        concludes="client, when it makes up half of the time",
        judge=_client_late,
    ),
    Rule(
        name="entry unreachable",
        needs="the phase in which the connection failed, and a second attempt",
        concludes="the entry, when no connection comes about",
        judge=_entry_unreachable,
    ),
    Rule(
        name="worker unreachable",
        needs="whether each service answers a cheap question",
        concludes="the role whose workers don't answer while others do",
        judge=_worker_unreachable,
    ),
    Rule(
        name="said by the server",
        needs="an error text or header that names a layer",
        concludes="that layer, as the server's own opinion",
        judge=_said,
    ),
)
