"""Running probes: calibrate before, judge the budget after, and write down what each left behind."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest

from pytest_pdserve.capabilities import CapabilityMissing
from pytest_pdserve.deployment import Inconclusive, NotRun, ProbeFailure, ProbeHang
from pytest_pdserve.fixtures import DEPLOYMENT, RUN
from pytest_pdserve.judge import Finding, ProbeOutcome, ProbeRecord, ReplyRecord
from pytest_pdserve.markers import read_mark
from pytest_pdserve.plugin.collection import asks_for_answers, can_wedge, is_probe, probe_id, stage_of

if TYPE_CHECKING:
    from collections.abc import Generator

    from pytest_pdserve.chat import Reply
    from pytest_pdserve.deployment import Deployment
    from pytest_pdserve.run import Run

REPLIES_KEPT: Final = 200
STOPPED: Final = "the deployment stopped answering after this probe"
SKIPS: Final[dict[type[BaseException] | type[None], ProbeOutcome]] = {
    Inconclusive: ProbeOutcome.INCONCLUSIVE,
    NotRun: ProbeOutcome.NOT_RUN,
    CapabilityMissing: ProbeOutcome.SKIPPED,
}
"""What a probe raises to say that it measured nothing against the deployment."""


class Prober:
    """Hooks of running, in each process that runs probes."""

    def __init__(self, config: pytest.Config, run: Run) -> None:
        self._run = run
        self._mask = run.settings.credential.mask
        config.stash[RUN] = run

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Try what the probe needs before its time begins; judge its budget when it has passed."""
        deployment = item.stash.get(DEPLOYMENT, None)
        if deployment is None or not is_probe(item):
            return (yield)
        if (wedged := self._run.gate.wedged) and not self._run.keep_going and asks_for_answers(item):
            raise NotRun(wedged)
        try:
            self._run.require(read_mark(item, "needs") or (), deployment)
            result = yield
            if self._run.gate.unsettled is None:
                deployment.judge_budget()
        except (ProbeFailure, pytest.fail.Exception) as error:
            raise self._looked_after(item, error) from None
        if can_wedge(item) and not self._run.gate.answers():
            self._run.gate.close(probe_id(item))
            raise ProbeHang(Finding(what=STOPPED))
        return result

    def _looked_after(self, item: pytest.Function, error: BaseException) -> BaseException:
        """What a failed probe raises, with what it left behind; whoever comes next is told."""
        gate, name = self._run.gate, probe_id(item)
        if item.get_closest_marker("settles") is not None:
            gate.not_settled(name)
        if not (isinstance(error, ProbeHang) or _timed_out(error) or can_wedge(item)) or gate.wedged:
            return error
        if gate.answers():
            return error
        gate.close(name)
        if not isinstance(error, ProbeFailure):
            return error
        return type(error)(replace(error.finding, evidence=(*error.finding.evidence, STOPPED)))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Give the report its outcome and its text, and the probe's record to carry to the controller."""
        report = yield
        if not is_probe(item):
            return report
        error = call.excinfo.value if call.excinfo else None
        if type(error) in SKIPS:
            report.outcome = "skipped"
            report.longrepr = (str(item.path), item.location[1] or 0, f"{SKIPS[type(error)]}: {error}")
        elif isinstance(error, ProbeFailure):
            report.longrepr = str(error)
        self._mask_report(report)
        if report.when == "call" or not report.passed:
            report.pdserve = self._record(item, report, error).to_json()  # type: ignore[attr-defined]
        return report

    def pytest_unconfigure(self) -> None:
        """Close the connections and the loop thread."""
        self._run.close()

    def _mask_report(self, report: pytest.TestReport) -> None:
        if report.longrepr is not None and not isinstance(report.longrepr, tuple):
            text = str(report.longrepr)
            if (masked := self._mask(text)) != text:
                report.longrepr = masked
        report.sections = [(name, self._mask(text)) for name, text in report.sections]

    def _masked(self, finding: Finding) -> Finding:
        mask = self._mask
        return replace(
            finding,
            what=mask(finding.what),
            evidence=tuple(mask(line) for line in finding.evidence),
            against=tuple(mask(line) for line in finding.against),
            ruled_out=tuple(mask(line) for line in finding.ruled_out),
            replay=mask(finding.replay) if finding.replay is not None else None,
        )

    def _record(
        self, item: pytest.Function, report: pytest.TestReport, error: BaseException | None
    ) -> ProbeRecord:
        deployment: Deployment | None = item.stash.get(DEPLOYMENT, None)
        replies = deployment.replies if deployment is not None else []
        outcome = _outcome(report, error)
        return ProbeRecord(
            id=probe_id(item),
            stage=stage_of(item.path),
            outcome=outcome,
            reason=self._mask(_reason(outcome, report, error)),
            duration=report.duration,
            needs=read_mark(item, "needs") or (),
            findings=tuple(self._masked(finding) for finding in _findings(outcome, error)),
            replies=tuple(self._reply(deployment, reply) for reply in replies[:REPLIES_KEPT] if deployment),
            dropped_replies=max(0, len(replies) - REPLIES_KEPT),
            answered=any(reply.completed for reply in replies),
            note=(self._run.gate.unsettled or "") if outcome is ProbeOutcome.PASSED and deployment else "",
        )

    def _reply(self, deployment: Deployment, reply: Reply) -> ReplyRecord:
        timeline = reply.exchange.timeline
        gaps = reply.itl
        return ReplyRecord(
            outcome=str(reply.outcome),
            reason=reply.reason,
            waited_for=reply.waited_for,
            streamed=reply.request.streamed,
            reused=timeline.reused,
            started=timeline.started - deployment.began,
            phases=timeline.offsets(),
            ttft=reply.ttft,
            second_token=reply.second_token,
            itl_p50=statistics.median(gaps) if gaps else None,
            itl_p99=sorted(gaps)[int(0.99 * len(gaps))] if gaps else None,
            e2e=reply.e2e,
            prompt_tokens=reply.usage.prompt if reply.usage else None,
            completion_tokens=reply.usage.completion if reply.usage else None,
            finish_reason=reply.finish_reason,
            client_lag=deployment.lag(reply),
        )


def _outcome(report: pytest.TestReport, error: BaseException | None) -> ProbeOutcome:
    if report.passed:
        return ProbeOutcome.PASSED
    if report.skipped:
        return SKIPS.get(type(error), ProbeOutcome.SKIPPED)
    if isinstance(error, ProbeHang) or _timed_out(error):
        return ProbeOutcome.HUNG
    # An assertion is a measurement; anything else that a probe raises is its own mistake.
    if isinstance(error, AssertionError | pytest.fail.Exception) and report.when == "call":
        return ProbeOutcome.FAILED
    return ProbeOutcome.BROKE


def _timed_out(error: BaseException | None) -> bool:
    return isinstance(error, pytest.fail.Exception) and "from pytest-timeout" in str(error)


def _reason(outcome: ProbeOutcome, report: pytest.TestReport, error: BaseException | None) -> str:
    if type(error) in SKIPS:
        return str(error)
    if outcome is ProbeOutcome.SKIPPED and isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return f"{type(error).__name__}: {error}".splitlines()[0] if outcome is ProbeOutcome.BROKE else ""


def _findings(outcome: ProbeOutcome, error: BaseException | None) -> list[Finding]:
    if isinstance(error, ProbeFailure):
        return [error.finding]
    if outcome in (ProbeOutcome.FAILED, ProbeOutcome.HUNG):
        return [Finding(what=(str(error).strip() or "an assertion failed").splitlines()[0])]
    return []
