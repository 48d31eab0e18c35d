"""Records to show, by hand and drawn."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from pytest_pdserve.judge import Finding, ProbeOutcome, ProbeRecord, ReplyRecord, Sureness, judge_run
from pytest_pdserve.report import RunRecord
from pytest_pdserve.target.target import Role, Service, Target

TARGET = Target(
    name="llm-07",
    entry="http://llm-07:30001",
    services=(Service(role=Role.ROUTER, url="http://llm-07:30001", name="router", declared=True),),
    engine="sglang",
    engine_version="0.5.23",
    model="a-model",
)
HOSTILE = (
    "\x1b[31mred\x1b]0;title\x07 \u202egnp.exe\u2066 </script><script>alert(1)</script>\0\ud800\r\n<b>'\"&"
)
"""ANSI and OSC escapes, bidi controls, markup, NUL, a lone surrogate, line breaks, quotes."""

DRAWN = settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.function_scoped_fixture,
    ],
)
"""For tests over drawn records: they are large, and other work may slow the machine."""


def probe(outcome: ProbeOutcome = ProbeOutcome.PASSED, **fields) -> ProbeRecord:
    given = {
        "id": "suites/health/test_path.py::test_answers",
        "stage": "health",
        "answered": True,
        "needs": ("copy",),
    }
    return ProbeRecord(outcome=outcome, **(given | fields))


def reply(**fields) -> ReplyRecord:
    given = {
        "outcome": "completed",
        "phases": {"connected": 0.001, "headers": 0.09, "ended": 0.5},
        "ttft": 0.1,
        "second_token": 0.02,
        "itl_p50": 0.01,
        "itl_p99": 0.03,
        "e2e": 0.5,
    }
    return ReplyRecord(**(given | fields))


def record(*probes: ProbeRecord, **fields) -> RunRecord:
    given = {
        "tool_version": "0.1.0",
        "target": TARGET,
        "verdict": judge_run(probes, incomplete=fields.get("incomplete")),
        "started": "2026-11-30T23:06:43Z",
        "duration": 112.3,
        "depth": "standard",
        "plan": "at most 1,420 requests",
        "probes": probes,
    }
    return RunRecord(**(given | fields))


any_text = st.one_of(
    st.text(st.characters(), max_size=300),
    st.text("ab 深\u0301é\u202e\x1b/", min_size=60, max_size=400),
    st.sampled_from(["", " ", HOSTILE, "x" * 500, "深" * 300, "a b " * 200, "\u0301" * 200]),
)
any_time = st.none() | st.floats(0, 1e6)
any_finding = st.builds(
    Finding,
    what=any_text,
    evidence=st.lists(any_text, max_size=12).map(tuple),
    layer=st.none() | st.sampled_from(["KV transfer", "proxy"]) | any_text,
    sureness=st.sampled_from(Sureness),
    replay=st.none() | any_text,
)
any_reply = st.builds(
    ReplyRecord,
    outcome=st.sampled_from(["completed", "hung"]) | any_text,
    reason=any_text,
    phases=st.dictionaries(any_text, st.floats(0, 1e6), max_size=3),
    ttft=any_time,
    e2e=any_time,
    itl_p50=any_time,
    itl_p99=any_time,
)
any_probe = st.builds(
    ProbeRecord,
    id=any_text,
    stage=st.just("own"),
    outcome=st.sampled_from(ProbeOutcome),
    reason=any_text,
    findings=st.lists(any_finding, max_size=3).map(tuple),
    replies=st.lists(any_reply, max_size=3).map(tuple),
)
any_record = st.builds(
    lambda probes, **fields: record(*probes, **fields),
    st.lists(any_probe, max_size=14),
    target=st.builds(
        Target,
        name=any_text,
        entry=any_text,
        services=st.just(TARGET.services),
        engine=st.just("vllm"),
        model=st.none() | any_text,
        notes=st.lists(any_text, max_size=2).map(tuple),
    ),
    selection=any_text,
    incomplete=st.none() | any_text,
    duration=st.floats(0, 1e6),
    client_lag=st.floats(0, 1e3),
)
