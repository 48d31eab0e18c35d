"""What one probe left behind, as plain data: it travels from worker to controller and into the record."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec


class ProbeOutcome(StrEnum):
    """How a probe came out."""

    PASSED = "passed"
    FAILED = "failed"
    """It measured something that is wrong."""
    HUNG = "hung"
    """Something did not come within its deadline."""
    BROKE = "broke"
    """The probe itself went wrong (an error in its code, a worker that died): says nothing of the deployment."""
    INCONCLUSIVE = "inconclusive"
    """It ran, and what it measured doesn't decide."""
    SKIPPED = "skipped"
    """It doesn't apply here: a capability is missing, or the user left it out."""
    NOT_RUN = "not run"
    """It would have applied, but something kept it from running."""


OWN_STAGE = "own"
"""The stage of a user's probes."""

AGAINST = frozenset({ProbeOutcome.FAILED, ProbeOutcome.HUNG})
"""Outcomes that speak against the deployment."""


class Sureness(StrEnum):
    """How sure the layer of a finding is."""

    SHOWN = "shown"
    LIKELY = "likely"
    OPEN = "open"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong: what, where, what showed it, and how to see it again."""

    what: str
    """One line; the first that people read."""
    evidence: tuple[str, ...] = ()
    """Lines of what was measured, those against the conclusion included."""
    layer: str | None = None
    """client, proxy, router, prefill, KV transfer or decode; None while nothing measured decides."""
    sureness: Sureness = Sureness.OPEN
    rule: str = ""
    """The name of the rule of attribution that was believed."""
    against: tuple[str, ...] = ()
    """What speaks for another layer."""
    ruled_out: tuple[str, ...] = ()
    """The layers that were seen to be sound, each with why."""
    would_decide: str = ""
    """What to measure to be sure of the layer; empty when it is."""
    replay: str | None = None
    """A shell command that sends the same again, without secrets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyRecord:
    """One reply in numbers; times in seconds, None where the reply doesn't carry them."""

    outcome: str
    reason: str = ""
    waited_for: str = "done"
    streamed: bool = True
    reused: bool = False
    started: float | None = None
    """Seconds since the probe began."""
    phases: dict[str, float]
    """Seconds from the exchange's start to each phase of the wire that was reached."""
    ttft: float | None = None
    second_token: float | None = None
    itl_p50: float | None = None
    itl_p99: float | None = None
    e2e: float | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reason: str | None = None
    client_lag: float = 0.0
    """The longest that our own event loop was late while this reply was open, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRecord:
    """One probe: its outcome, what it found, and the replies it judged."""

    id: str
    """pytest's node id; that of a bundled probe begins with suites/ wherever the suites are installed."""
    stage: str
    """The bundled suite's folder, or `OWN_STAGE`."""
    outcome: ProbeOutcome
    reason: str = ""
    """Why it was skipped, not run, inconclusive or broke; one line."""
    note: str = ""
    """What a reader of a probe that passed has to know all the same; one line."""
    duration: float = 0.0
    """Seconds, set-up and clean-up included."""
    needs: tuple[str, ...] = ()
    """Capabilities without which it is skipped."""
    findings: tuple[Finding, ...] = ()
    replies: tuple[ReplyRecord, ...] = ()
    dropped_replies: int = 0
    """How many further replies there were; a record keeps a bounded number."""
    answered: bool = False
    """Whether at least one whole answer came through the entry."""

    @property
    def checks_content(self) -> bool:
        """Whether it judges what answers say: the oracle that every model has, or a user's own assertions."""
        return "copy" in self.needs or self.stage == OWN_STAGE

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers."""
        return dict(msgspec.to_builtins(self))

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ProbeRecord:
        """The inverse of `to_json`. Raises msgspec.ValidationError when the data is not of that shape."""
        return msgspec.convert(data, cls)
