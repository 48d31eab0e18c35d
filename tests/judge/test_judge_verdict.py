import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_pdserve.judge import (
    AGAINST,
    Finding,
    ProbeOutcome,
    ProbeRecord,
    ReplyRecord,
    Sureness,
    VerdictOutcome,
    judge_run,
)

ACCEPTED, REJECTED, INCONCLUSIVE = (
    VerdictOutcome.ACCEPTED,
    VerdictOutcome.REJECTED,
    VerdictOutcome.INCONCLUSIVE,
)


def probe(outcome=ProbeOutcome.PASSED, **fields) -> ProbeRecord:
    given_ = {"id": "a.py::test_a", "stage": "health", "answered": outcome is ProbeOutcome.PASSED}
    return ProbeRecord(outcome=outcome, **(given_ | fields))


COPY = probe(id="a.py::test_copy", needs=("copy",))
"""With it alone a run is accepted."""


def judged(*probes, **fields):
    verdict = judge_run(probes, **fields)
    return verdict.outcome, list(verdict.reasons)


def test_whole_right_answers_and_nothing_against_them_are_accepted():
    assert judged(COPY) == (ACCEPTED, [])
    assert judged(COPY, probe(), probe(ProbeOutcome.SKIPPED, reason="no logprobs")) == (ACCEPTED, [])


def test_nothing_probed_is_not_accepted():
    assert judged() == (INCONCLUSIVE, ["no probe that passed got an answer through the entry"])


@pytest.mark.parametrize("outcome", [ProbeOutcome.FAILED, ProbeOutcome.HUNG])
def test_one_probe_against_it_rejects(outcome):
    assert judged(COPY, probe(outcome)) == (REJECTED, [f"1 {outcome}"])


def test_what_is_against_it_is_counted_hangs_first():
    outcomes = [ProbeOutcome.FAILED, ProbeOutcome.HUNG, ProbeOutcome.FAILED, ProbeOutcome.BROKE]
    assert judged(COPY, *map(probe, outcomes)) == (REJECTED, ["1 hung, 2 failed"])


def test_an_entry_that_can_not_be_reached_rejects():
    assert judged(unreachable="http://a: refused") == (REJECTED, ["http://a: refused"])
    waiting = probe(ProbeOutcome.NOT_RUN, reason="http://a: refused")
    assert judged(waiting, unreachable="http://a: refused") == (REJECTED, ["http://a: refused"])
    assert judged(probe(ProbeOutcome.FAILED), unreachable="refused") == (REJECTED, ["refused", "1 failed"])


def test_an_incomplete_run_is_inconclusive_whatever_it_found():
    assert judged(COPY, incomplete="interrupted") == (INCONCLUSIVE, ["incomplete: interrupted"])
    found = judged(COPY, probe(ProbeOutcome.HUNG), incomplete="interrupted")
    assert found == (INCONCLUSIVE, ["incomplete: interrupted", "by then: 1 hung"])


def test_a_broken_probe_leaves_its_question_open():
    outcome, reasons = judged(COPY, probe(ProbeOutcome.BROKE))
    assert outcome is INCONCLUSIVE
    assert reasons == ["1 broke: what they would have measured is unknown"]


def test_an_inconclusive_probe_leaves_its_question_open():
    late = probe(ProbeOutcome.INCONCLUSIVE, id="a.py::test_fast", reason="the client was late")
    assert judged(COPY, late) == (INCONCLUSIVE, ["a.py::test_fast: the client was late"])


def test_a_probe_that_did_not_run_leaves_its_question_open():
    waiting = [probe(ProbeOutcome.NOT_RUN, reason="the deadline of the run")] * 2
    assert judged(COPY, *waiting) == (INCONCLUSIVE, ["2 not run: the deadline of the run"])


def test_only_answers_through_the_entry_count():
    assert judged(probe(needs=("copy",), answered=False)) == (
        INCONCLUSIVE,
        ["no probe that passed got an answer through the entry"],
    )
    assert judged(probe(ProbeOutcome.SKIPPED, answered=True)) == (
        INCONCLUSIVE,
        ["no probe that passed got an answer through the entry"],
    )


def test_content_has_to_be_checked_by_a_probe_that_passed():
    nobody = "nothing shows that answers are right: no probe that checks what an answer says was run"
    assert judged(probe()) == (INCONCLUSIVE, [nobody])
    unable = probe(ProbeOutcome.SKIPPED, needs=("copy",), reason="the model can't copy a code")
    reason = "nothing shows that answers are right: the model can't copy a code"
    assert judged(probe(), unable) == (INCONCLUSIVE, [reason])
    assert judged(COPY, unable) == (ACCEPTED, [])


def test_a_users_own_probe_checks_content():
    assert judged(probe(stage="own")) == (ACCEPTED, [])


outcomes = st.lists(
    st.builds(
        probe,
        st.sampled_from(ProbeOutcome),
        reason=st.text(max_size=5),
        needs=st.sampled_from([(), ("copy",)]),
        stage=st.sampled_from(["health", "own"]),
    ),
    max_size=8,
)


@settings(deadline=None)
@given(outcomes, st.none() | st.just("refused"), st.none() | st.just("interrupted"))
def test_no_acceptance_without_evidence_and_none_against_it(probes, unreachable, incomplete):
    verdict = judge_run(probes, unreachable=unreachable, incomplete=incomplete)
    assert (verdict.outcome is ACCEPTED) == (not verdict.reasons)
    if verdict.outcome is ACCEPTED:
        assert not unreachable
        assert not incomplete
        assert {each.outcome for each in probes} <= {ProbeOutcome.PASSED, ProbeOutcome.SKIPPED}
        assert any(each.answered and each.outcome is ProbeOutcome.PASSED for each in probes)
    if any(each.outcome in AGAINST for each in probes) and not incomplete:
        assert verdict.outcome is REJECTED


@settings(deadline=None)
@given(outcomes, st.randoms(use_true_random=False))
def test_the_order_of_probes_does_not_change_the_verdict(probes, source):
    shuffled = source.sample(probes, len(probes))
    assert judge_run(shuffled).outcome is judge_run(probes).outcome


def test_a_probe_record_travels_as_plain_json():
    whole = probe(
        ProbeOutcome.HUNG,
        needs=("copy", "tools"),
        findings=(Finding(what="hung", evidence=("a", "b"), layer="decode", sureness=Sureness.LIKELY),),
        replies=(ReplyRecord(outcome="hung", phases={"sent": 0.1}, ttft=0.5),),
        dropped_replies=3,
    )
    data = whole.to_json()
    assert data["outcome"] == "hung"
    assert ProbeRecord.from_json(data) == whole
