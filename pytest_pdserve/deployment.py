"""What a probe holds in its hand: the deployment, asked synchronously, every reply remembered."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from pytest_pdserve.chat import (
    COPY_WAYS,
    DEADLINE,
    ChatRequest,
    Message,
    Reply,
    chat_request,
    completion_request,
)
from pytest_pdserve.evidence import Surroundings
from pytest_pdserve.judge import Finding, Latencies, LatencyBudget, judge_budget
from pytest_pdserve.judge.attribution import Kind, attribute
from pytest_pdserve.load import Sends, together
from pytest_pdserve.report import failure_text
from pytest_pdserve.symptoms import symptom_of
from pytest_pdserve.wire import Outcome

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping, Sequence

    from pytest_pdserve.chat import ChatClient
    from pytest_pdserve.judge.attribution import Symptom
    from pytest_pdserve.observe import Observer, ServiceState
    from pytest_pdserve.target import Service, Target
    from pytest_pdserve.wire import LoopThread

GRACE = 10.0
"""Seconds before a probe's own deadline at which its exchanges end, so that evidence can still be gathered."""
GRACE_SHARE = 1 / 3
"""What a probe with a short deadline keeps of it for that at most."""
SMALL = 16
"""Output tokens up to which an answer counts as small, for what is usual."""
BACKSTOP = 10.0
"""Seconds beyond an exchange's deadline after which the loop thread itself is given up."""

SHORTENED = 1.0
"""Seconds by which a deadline may fall short of the one asked for before a finding says so."""
STATE = 5.0
"""Seconds that one service has for a question that makes it compute nothing."""


def exchange_time(timeout: float) -> float:
    """How much of a probe's `timeout` (seconds) its exchanges may take: the rest is for evidence."""
    return timeout - min(GRACE, timeout * GRACE_SHARE)


class ProbeFailure(AssertionError):
    """The probe measured something that is wrong; `finding` says what."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(failure_text(finding))
        self.finding = finding


class ProbeHang(ProbeFailure):
    """Something did not come within its deadline."""


class Inconclusive(Exception):
    """What was measured doesn't decide; one line says why."""


class NotRun(Exception):
    """The probe would apply, but something keeps it from running; one line says what."""


@dataclass(slots=True, kw_only=True)
class Deployment:
    """The deployment under test, as one probe sees it: the fixture `pd`."""

    target: Target
    client: ChatClient
    loop: LoopThread
    observer: Observer
    source: random.Random
    """Randomness of this probe, for codes and prompts that no other request has."""
    budget: LatencyBudget
    """Limits from the settings and the mark; judged over all replies when the probe ends."""
    time_left: float
    """Seconds that the probe has for its exchanges."""
    longest_wait: float | None = None
    """The settings' limit for one answer, in seconds."""
    allowance: Sends | None = None
    """What the probe said it sends at most; None if it didn't."""
    most_at_once: int | None = None
    copy_way: Mapping[str, Any] = field(default_factory=lambda: COPY_WAYS[0])
    """The parameters with which this model copies, as far as that was tried."""
    replies: list[Reply] = field(default_factory=list)
    """Every reply so far, whole or not, in the order in which they were asked for."""
    sent: Sends = field(default_factory=Sends)
    began: float = field(default_factory=time.monotonic)

    @property
    def model(self) -> str | None:
        """The model's name, as the deployment offers it."""
        return self.target.model

    @property
    def services(self) -> tuple[Service, ...]:
        """The services behind the entry, as far as they are known."""
        return self.target.services

    def chat(self, messages: str | Sequence[Message], **parameters: Any) -> Reply:
        """Ask once and get a whole answer back; parameters as for `ChatClient.chat`.

        Raises ProbeHang when the answer doesn't come in time, ProbeFailure when what comes is no whole answer.
        """
        return self.whole(self.attempt(messages, **parameters))

    def attempt(self, messages: str | Sequence[Message], **parameters: Any) -> Reply:
        """Ask once and get back whatever comes, also a refusal or a hang, as `Reply.outcome` says."""
        return self.together([messages], **parameters)[0]

    def complete(self, prompt: str, **parameters: Any) -> Reply:
        """A plain completion of `prompt`; parameters as for `ChatClient.complete`; raises as `chat` does."""
        model = self._served_model()
        request = completion_request(model, prompt, **{**_DEFAULTS, **self._asked(parameters)})
        return self.whole(self._ask([request], **self._waits(parameters))[0])

    def together(self, asked: Sequence[str | Sequence[Message]], **parameters: Any) -> list[Reply]:
        """Ask all of `asked` in the same moment; one reply each, in order, whatever came back."""
        model = self._served_model()
        body = {**_DEFAULTS, **self._asked(parameters)}
        return self._ask(
            [chat_request(model, messages, **body) for messages in asked], **self._waits(parameters)
        )

    def whole(self, reply: Reply) -> Reply:
        """`reply`, if it is a whole answer that came in time. Raises ProbeHang or ProbeFailure if not."""
        if reply.completed:
            return reply
        earlier = [_brief(other) for other in self.replies[: self.replies.index(reply)][-4:]]
        before = [f"answers before it: {', '.join(earlier)}"] if earlier else []
        what = f"{self._place(reply)} {_VERBS[reply.outcome]}: {reply.reason}"
        finding = self.finding(what, reply, *before)
        raise (ProbeHang if reply.outcome is Outcome.HUNG else ProbeFailure)(finding)

    def finding(self, what: str, reply: Reply, *evidence: str, kind: Kind | None = None) -> Finding:
        """A finding about `reply`: which layer it lies in, what was measured around it, and how to send it again.

        `kind` says what is wrong with a whole answer: SLOW, or WRONG by default.
        """
        waited = time.monotonic() - reply.exchange.timeline.started
        symptom = symptom_of(reply, self.target, kind=kind, lag=self.lag(reply), waited=waited)
        found = attribute(symptom, self._surroundings(reply, symptom))
        return Finding(
            what=what,
            evidence=(*evidence, *reply.notes, *found.because),
            layer=found.layer,
            sureness=found.sureness,
            rule=found.rule,
            against=found.against,
            ruled_out=found.ruled_out,
            would_decide=found.would_decide,
            replay=self.client.replay(reply.request),
        )

    def _surroundings(self, reply: Reply, symptom: Symptom) -> Surroundings:
        """What was seen while it hung; else what is to be seen now, except where canaries can tell nothing."""
        if reply.surroundings is not None:
            return reply.surroundings
        if symptom.kind is Kind.WRONG:
            return Surroundings(usual=self.observer.usual)
        look = partial(self.observer.surroundings, reply.request, reused=symptom.reused)
        return self.loop.run(look, bound=GRACE + BACKSTOP)

    def fail(self, what: str, reply: Reply, *evidence: str) -> None:
        """Fail the probe with a finding about `reply`."""
        raise ProbeFailure(self.finding(what, reply, *evidence))

    def state(self, service: Service) -> ServiceState:
        """How one service answers a cheap question right now, within a few seconds."""
        return self.loop.run(partial(self.observer.state, deadline=STATE), service, bound=STATE + BACKSTOP)

    def models(self, service: Service) -> tuple[str, ...] | str:
        """The models that one service lists, or one line why it has no list."""
        return self.loop.run(partial(self.observer.models, deadline=STATE), service, bound=STATE + BACKSTOP)

    def lag(self, reply: Reply) -> float:
        """The longest that our own event loop was late while `reply` was open, in seconds."""
        return self.loop.lag(reply.exchange.timeline.started, reply.exchange.timeline.ended)

    def judge_budget(self) -> None:
        """Raise ProbeFailure if the replies so far broke the budget, Inconclusive if our own lateness may have."""
        whole = [reply for reply in self.replies if reply.completed]
        overruns = judge_budget(
            [
                Latencies(
                    ttft=reply.ttft,
                    second_token=reply.second_token,
                    itl=reply.itl,
                    e2e=reply.e2e,
                    client_lag=self.lag(reply),
                )
                for reply in whole
            ],
            self.budget,
        )
        certain = [str(overrun) for overrun in overruns if not overrun.client_may_explain]
        if certain:
            slowest = max(whole, key=lambda reply: reply.e2e or 0.0)
            answers = f"answers: {', '.join(_brief(reply) for reply in whole[:8])}"
            what = f"over budget: {certain[0]}"
            raise ProbeFailure(self.finding(what, slowest, *certain[1:], answers, kind=Kind.SLOW))
        if overruns:
            raise Inconclusive(f"{overruns[0]}, but this machine's own event loop was as late as that")

    def _served_model(self) -> str:
        if self.target.unreachable:
            raise NotRun(self.target.unreachable)
        if self.target.model is None:
            raise NotRun("the deployment names no model, and pdserve.toml doesn't either")
        return self.target.model

    def _asked(self, parameters: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in parameters.items() if name not in _WAITS}

    def _waits(self, parameters: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in parameters.items() if name in _WAITS}

    def _ask(
        self,
        requests: Sequence[ChatRequest],
        *,
        deadline: float = DEADLINE,
        connection: Literal["fresh", "reuse"] = "reuse",
    ) -> list[Reply]:
        self._account(requests)
        left = self.time_left - (time.monotonic() - self.began)
        wanted = min(deadline, self.longest_wait or deadline)
        deadline = min(wanted, left)
        if deadline <= 0:
            spent = ", ".join(_brief(reply) for reply in self.replies[-4:])
            raise ProbeHang(
                Finding(
                    what=f"the probe's {self.time_left:.0f} s are used up", evidence=(f"answers: {spent}",)
                )
            )
        ask = partial(self.client.ask, deadline=deadline, connection=connection)
        replies = self.loop.run(
            together, [partial(ask, request) for request in requests], bound=deadline + BACKSTOP
        )
        if left < wanted - SHORTENED:
            # A hang of two seconds would say little without it.
            note = f"it had only the {left:.1f} s that were left of the probe's {self.time_left:.0f} s"
            replies = [
                replace(reply, notes=(note, *reply.notes)) if reply.outcome is Outcome.HUNG else reply
                for reply in replies
            ]
        self.replies.extend(replies)
        for reply in replies:
            if reply.e2e is not None and reply.completed and 0 < reply.request.max_tokens <= SMALL:
                self.observer.note(reply.e2e)
        return replies

    def _account(self, requests: Sequence[ChatRequest]) -> None:
        if self.most_at_once is not None and len(requests) > self.most_at_once:
            raise NotRun(f"{len(requests)} at once is more than the {self.most_at_once} that are allowed")
        sent = self.sent + Sends(
            requests=len(requests),
            prompt_tokens=sum(request.most_prompt_tokens for request in requests),
            output_tokens=sum(request.max_tokens for request in requests),
            at_once=len(requests),
        )
        if self.allowance is not None and (excess := sent.beyond(self.allowance)):
            raise ValueError(f"the probe sends more than its mark `sends` says: {excess}")
        self.sent = sent

    def _place(self, reply: Reply) -> str:
        number = self.replies.index(reply) + 1
        return f"answer {number}" if len(self.replies) > 1 else "the answer"


_DEFAULTS = {"max_tokens": 64, "temperature": 0.0, "stream": True}
_WAITS = frozenset({"deadline", "connection"})
_VERBS = {
    Outcome.HUNG: "hung",
    Outcome.REFUSED: "was refused",
    Outcome.BROKEN: "broke off",
    Outcome.GARBLED: "is no answer",
}


def _brief(reply: Reply) -> str:
    """One reply in a word or two: its time, or how it ended."""
    return f"{reply.e2e:.2f} s" if reply.completed and reply.e2e is not None else str(reply.outcome)
