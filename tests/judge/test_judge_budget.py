import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_pdserve.judge import Latencies, LatencyBudget, judge_budget


def times(ttft=0.1, second_token=0.02, itl=(0.01, 0.01), e2e=0.5, client_lag=0.0) -> Latencies:
    return Latencies(ttft=ttft, second_token=second_token, itl=itl, e2e=e2e, client_lag=client_lag)


def only(replies, budget):
    (overrun,) = judge_budget(replies, budget)
    return overrun


@pytest.mark.parametrize(
    ("limits", "name"),
    [
        ({"ttft": 0.099}, "ttft"),
        ({"second_token": 0.019}, "second_token"),
        ({"itl_p99": 0.0099}, "itl_p99"),
        ({"e2e": 0.499}, "e2e"),
    ],
)
def test_each_limit_is_judged_alone(limits, name):
    overrun = only([times()], LatencyBudget(**limits))
    assert overrun.limit_name == name
    assert overrun.limit == limits[name]


def test_a_limit_that_is_just_kept_is_kept():
    assert judge_budget([times()], LatencyBudget(ttft=0.1, second_token=0.02, itl_p99=0.01, e2e=0.5)) == ()


def test_no_limits_and_no_replies_are_no_overruns():
    assert judge_budget([times(ttft=1e9)], LatencyBudget()) == ()
    assert judge_budget([], LatencyBudget(ttft=0.0, itl_p99=0.0)) == ()


def test_every_reply_has_to_keep_the_limit():
    replies = [times(), times(ttft=3.0), times(ttft=2.0), times(ttft=None)]
    overrun = only(replies, LatencyBudget(ttft=1.0))
    assert (overrun.worst, overrun.over, overrun.of) == (3.0, 2, 3)
    assert str(overrun) == "TTFT 3.00 s, budget 1.00 s (2 of 3 over)"


def test_itl_is_over_all_gaps_of_all_replies():
    smooth, rough = times(itl=(0.01,) * 150), times(itl=(0.01,) * 49 + (9.0,))
    assert judge_budget([smooth, rough], LatencyBudget(itl_p99=0.1)) == ()
    rougher = times(itl=(0.01,) * 47 + (9.0,) * 3)
    assert only([smooth, rougher], LatencyBudget(itl_p99=0.1)).worst == 9.0


def test_an_unstreamed_reply_has_only_e2e_to_keep():
    reply = times(ttft=None, second_token=None, itl=())
    budget = LatencyBudget(ttft=0.0, second_token=0.0, itl_p99=0.0, e2e=0.1)
    assert only([reply], budget).limit_name == "e2e"


@pytest.mark.parametrize(
    ("ttft", "client_lag", "explains"),
    [(1.2, 0.0, False), (1.2, 0.19, False), (1.2, 0.21, True), (9.0, 0.21, False)],
)
def test_only_an_overrun_beyond_our_own_lag_counts(ttft, client_lag, explains):
    overrun = only([times(ttft=ttft, client_lag=client_lag)], LatencyBudget(ttft=1.0))
    assert overrun.client_may_explain is explains


def test_lag_has_to_explain_every_overrun():
    budget = LatencyBudget(ttft=1.0)
    late = times(ttft=1.2, client_lag=0.3)
    assert only([late, late], budget).client_may_explain
    assert not only([late, times(ttft=1.2)], budget).client_may_explain
    assert only([late, times(client_lag=0.0)], budget).client_may_explain


def test_what_was_kept_in_spite_of_lag_is_kept():
    assert judge_budget([times(client_lag=60.0)], LatencyBudget(ttft=0.1)) == ()


def test_one_late_reply_does_not_excuse_another_ones_gaps():
    late = times(itl=(0.01,) * 10, client_lag=5.0)
    overrun = only([late, times(itl=(0.01,) * 5 + (2.0,))], LatencyBudget(itl_p99=1.0))
    assert not overrun.client_may_explain
    assert only([times(itl=(2.0,), client_lag=5.0)], LatencyBudget(itl_p99=1.0)).client_may_explain


def test_one_late_reply_at_the_99th_place_does_not_excuse_the_punctual_ones_below():
    late, punctual = times(itl=(2.1, 2.1), client_lag=5.0), times(itl=(2.0,) * 98)
    overrun = only([late, punctual], LatencyBudget(itl_p99=1.0))
    assert overrun.worst == 2.1
    assert not overrun.client_may_explain


def test_an_itl_overrun_counts_gaps():
    overrun = only([times(itl=(0.01, 2.0, 3.0))], LatencyBudget(itl_p99=1.0))
    assert str(overrun) == "ITL p99 3.00 s, budget 1.00 s (2 of 3 over)"


def test_limits_are_taken_from_the_other_budget_where_there_are_none():
    own, other = LatencyBudget(ttft=1.0, e2e=0.0), LatencyBudget(ttft=2.0, second_token=3.0, e2e=4.0)
    assert own.or_else(other) == LatencyBudget(ttft=1.0, second_token=3.0, e2e=0.0)


seconds = st.floats(0, 1e4)
replies = st.lists(
    st.builds(
        Latencies,
        ttft=st.none() | seconds,
        second_token=st.none() | seconds,
        itl=st.lists(seconds, max_size=5).map(tuple),
        e2e=st.none() | seconds,
        client_lag=seconds,
    ),
    max_size=8,
)
limit = st.none() | seconds
budgets = st.builds(LatencyBudget, ttft=limit, second_token=limit, itl_p99=limit, e2e=limit)


@settings(deadline=None)
@given(replies, budgets)
def test_an_overrun_is_beyond_its_limit_and_a_raised_limit_is_kept(drawn, budget):
    overruns = judge_budget(drawn, budget)
    assert all(overrun.worst > overrun.limit and 1 <= overrun.over <= overrun.of for overrun in overruns)
    raised = {overrun.limit_name: overrun.worst for overrun in overruns}
    assert judge_budget(drawn, LatencyBudget(**raised)) == ()


@settings(deadline=None)
@given(replies, budgets)
def test_a_punctual_client_explains_nothing(drawn, budget):
    punctual = [
        Latencies(ttft=reply.ttft, second_token=reply.second_token, itl=reply.itl, e2e=reply.e2e)
        for reply in drawn
    ]
    assert not any(overrun.client_may_explain for overrun in judge_budget(punctual, budget))
