"""A reply that is not as it should be, as attribution reads it."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Final

from pytest_pdserve.engines import ENGINES
from pytest_pdserve.judge.attribution import Kind, Layer, Pace, Symptom
from pytest_pdserve.target import Role
from pytest_pdserve.wire import Outcome

if TYPE_CHECKING:
    from pytest_pdserve.chat import Reply
    from pytest_pdserve.target import Target

ERROR_CODE: Final = "x-smg-error-code"
"""The header in which sglang-router and vllm-router say whose error it was."""


def symptom_of(reply: Reply, target: Target, *, kind: Kind | None, lag: float, waited: float) -> Symptom:
    """What `reply` shows.

    `kind` says what is wrong with a whole answer; of others the outcome says it. `lag` is our own lateness while it
    was open and `waited` the time until it was given up where it did not end by itself, in seconds.
    """
    if not reply.completed:
        kind = Kind.HUNG if reply.outcome is Outcome.HUNG else Kind.FAILED
    blamed, told = _blamed(reply, target)
    outputs = reply.choice.output_at
    return Symptom(
        kind=kind or Kind.WRONG,
        seconds=reply.e2e if reply.e2e is not None else waited,
        waited_for=reply.waited_for,
        reused=reply.exchange.timeline.reused,
        proxied=bool(target.of(Role.PROXY)),
        tokens=len(outputs),
        blamed=blamed,
        told=told,
        lag=lag,
        pace=Pace(
            ttft=reply.ttft,
            second_token=reply.second_token,
            itl=median(reply.itl) if reply.itl else None,
            prompt_tokens=reply.usage.prompt if reply.usage else None,
        ),
    )


def _blamed(reply: Reply, target: Target) -> tuple[Layer | None, str]:
    """The layer that the server's own words name, and these words."""
    if reply.completed or reply.outcome is Outcome.HUNG:
        return None, ""
    code = reply.exchange.header(ERROR_CODE) or ""
    body = bytes(reply.exchange.body.data[:4096]).decode("utf-8", "replace")
    for words, layer in ENGINES[target.engine].blames.items():
        if code.startswith(words):
            return Layer(layer), f"{ERROR_CODE}: {code}"
        if words in body or words in reply.reason:
            return Layer(layer), f'"{words}" in its answer'
    return None, ""
