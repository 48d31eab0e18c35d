import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_pdserve.judge import Course, Settle, judge_settle, slower

DISAGGREGATED = (17.9, 106.4, 10.5, None)
"""A deployment whose slow first answers were called a cold start, until one never came."""


def test_the_hundred_and_six_second_story():
    judged = judge_settle(DISAGGREGATED, budget=2.0)
    assert judged == Settle(course=Course.HUNG, slower_at=2, hung_at=4)
    assert judged.cold_start_falsified


@pytest.mark.parametrize(
    ("so_far", "course"), [(1, Course.FALLING), (2, Course.NOT_WARM_UP), (3, Course.NOT_WARM_UP)]
)
def test_the_same_story_as_it_unfolds(so_far, course):
    assert judge_settle(DISAGGREGATED[:so_far], budget=2.0).course is course


@pytest.mark.parametrize("factor", [0.01, 0.1, 3.0])
def test_the_same_story_at_another_scale(factor):
    scaled = [None if latency is None else latency * factor for latency in DISAGGREGATED]
    assert judge_settle(scaled, budget=2.0 * factor) == Settle(course=Course.HUNG, slower_at=2, hung_at=4)


def test_a_cold_start_that_settles():
    judged = judge_settle([17.9, 2.1, 0.31, 0.30, 0.30], budget=2.0)
    assert judged.course is Course.SETTLED
    assert judged.steady == 0.30
    assert judged.cold_penalty == pytest.approx(17.6 + 1.8)
    assert not judged.cold_start_falsified


def test_steady_from_the_first_answer():
    judged = judge_settle([0.30, 0.31, 0.30], budget=2.0)
    assert (judged.course, judged.steady, judged.cold_penalty) == (Course.SETTLED, 0.30, 0.0)


def test_an_answer_faster_than_steady_is_no_negative_penalty():
    assert judge_settle([0.10, 0.30, 0.30, 0.30], budget=2.0).cold_penalty == 0.0


@pytest.mark.parametrize(
    "latencies", [[], [0.3], [0.3, 0.3], [17.9, 9.0, 5.0], [17.9, 9.0, 5.0, 4.9, 4.9], [3.0, 0.3, 0.3]]
)
def test_too_few_or_too_slow_is_still_falling(latencies):
    assert judge_settle(latencies, budget=2.0) == Settle(course=Course.FALLING)


def test_the_budget_itself_is_kept():
    assert judge_settle([2.0, 2.0, 2.0], budget=2.0).course is Course.SETTLED
    assert judge_settle([2.0, 2.0, 2.001], budget=2.0).course is Course.FALLING


def test_within_the_budget_but_apart_is_unsteady():
    assert judge_settle([0.3, 1.9, 0.3], budget=2.0) == Settle(course=Course.UNSTEADY)
    assert judge_settle([0.3, 1.9, 0.3, 0.3, 0.3], budget=2.0).course is Course.SETTLED


def test_slower_within_noise_falsifies_nothing():
    assert judge_settle([10.0, 15.0, 0.3, 0.3, 0.3], budget=2.0).course is Course.SETTLED
    assert judge_settle([10.0, 15.1, 0.3, 0.3, 0.3], budget=2.0).course is Course.NOT_WARM_UP


def test_the_slower_one_is_held_against_the_fastest_before_it():
    assert judge_settle([17.9, 3.0, 10.0], budget=2.0).slower_at == 3
    assert judge_settle([3.0, 4.5, 6.5], budget=2.0).slower_at == 3


def test_slower_within_the_budget_falsifies_nothing():
    assert judge_settle([0.1, 1.9, 1.9, 1.9], budget=2.0).slower_at is None


def test_a_series_that_settles_after_a_relapse_is_no_warm_up_still():
    judged = judge_settle([17.9, 106.4, 10.5, 0.3, 0.3, 0.3], budget=2.0)
    assert (judged.course, judged.slower_at, judged.steady) == (Course.NOT_WARM_UP, 2, 0.3)


def test_one_that_hung_stays_hung_whatever_followed():
    assert judge_settle([None, 0.3, 0.3, 0.3], budget=2.0) == Settle(course=Course.HUNG, hung_at=1)


@pytest.mark.parametrize(
    ("latency", "than", "is_slower"),
    [(1.5, 1.0, False), (1.55, 1.0, False), (1.56, 1.0, True), (0.05, 0.0, False), (0.06, 0.001, True)],
)
def test_noise_is_half_as_much_again_and_fifty_milliseconds(latency, than, is_slower):
    assert slower(latency, than=than) is is_slower


latency = st.floats(0.001, 1e3)
series = st.lists(st.none() | latency, max_size=12)


@settings(deadline=None)
@given(series, latency)
def test_a_series_hung_exactly_when_one_did(latencies, budget):
    judged = judge_settle(latencies, budget=budget)
    assert (judged.course is Course.HUNG) == (None in latencies) == (judged.hung_at is not None)
    if judged.hung_at is not None:
        assert latencies[judged.hung_at - 1] is None
        assert None not in latencies[: judged.hung_at - 1]


@settings(deadline=None)
@given(st.lists(latency, max_size=12), latency)
def test_falling_latencies_are_never_held_against_a_cold_start(latencies, budget):
    judged = judge_settle(sorted(latencies, reverse=True), budget=budget)
    assert not judged.cold_start_falsified
    assert judged.course in {Course.SETTLED, Course.FALLING, Course.UNSTEADY}


@settings(deadline=None)
@given(series, latency)
def test_what_settled_keeps_the_budget_three_times_in_a_row(latencies, budget):
    judged = judge_settle(latencies, budget=budget)
    if judged.course is Course.SETTLED:
        last = latencies[-3:]
        assert len(last) == 3
        assert max(last) <= budget
        assert not slower(max(last), than=min(last))
        assert min(last) <= judged.steady <= max(last)
        assert judged.cold_penalty >= 0.0


@settings(deadline=None)
@given(series, series, latency)
def test_a_falsified_cold_start_stays_falsified(latencies, more, budget):
    before, after = (judge_settle(given_, budget=budget) for given_ in (latencies, latencies + more))
    if before.cold_start_falsified:
        assert after.slower_at == before.slower_at
        assert after.course in {Course.NOT_WARM_UP, Course.HUNG}


@settings(deadline=None)
@given(st.lists(latency, min_size=1, max_size=6), latency)
def test_three_good_answers_settle_whatever_was_only_falling(latencies, budget):
    falling = sorted(latencies, reverse=True)
    steady = min(falling[-1], budget)
    assert judge_settle([*falling, steady, steady, steady], budget=budget).course is Course.SETTLED
