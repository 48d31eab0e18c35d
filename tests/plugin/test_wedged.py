"""A deployment that stops answering is noticed at the probe after which it did, and not waited for again."""

from __future__ import annotations

import pytest

SHORT = "[sim]\nlimits.deadline = 3\n"
BY = "test_short_answers_come[streamed-fresh]"


def reasons(ran):
    return {probe["reason"] for probe in ran.record["probes"] if probe["outcome"] == "not run"}


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_what_follows_a_wedge_is_not_run(run, workers):
    run.write("pdserve.toml", SHORT)
    ran = run("--pd-target=sim", "--pd-sim=--fault transfer-stuck=after=6", *workers)
    outcomes = ran.outcomes()
    assert (ran.code, ran.verdict, outcomes[BY]) == (1, "REJECTED", "hung"), ran.out
    (reason,) = reasons(ran)
    assert reason.startswith(f"the deployment is wedged since suites/health/test_short_answers.py::{BY} (")
    (finding,) = (finding for probe in ran.record["probes"] for finding in probe["findings"])
    assert finding["evidence"][-1] == "the deployment stopped answering after this probe"
    assert (finding["layer"], finding["sureness"]) == ("KV transfer", "likely")
    later = [name for name, outcome in outcomes.items() if outcome == "not run"]
    assert len(later) == 9
    assert sum(len(probe["replies"]) for probe in ran.record["probes"]) <= 10


def test_going_on_all_the_same(run):
    run.write("pdserve.toml", "[sim]\nlimits.deadline = 1\n")
    ran = run(
        "--pd-target=sim",
        "--pd-keep-going",
        "--pd-sim=--fault transfer-stuck=after=6",
        "-k",
        "short or stream",
    )
    assert not reasons(ran)
    assert list(ran.outcomes().values()).count("hung") == 4


def test_one_hang_of_a_deployment_that_answers_stops_nothing(run):
    run.write("pdserve.toml", SHORT)
    ran = run("--pd-target=sim", "--pd-sim=--fault hang-before-headers=turn=5")
    outcomes = ran.outcomes()
    assert not reasons(ran)
    assert "hung" in outcomes.values()
    assert outcomes["test_stream_is_whole"] == "passed"


def test_a_probe_that_passes_and_leaves_a_wedge_is_blamed(run, tmp_path):
    run.write("pdserve.toml", SHORT)
    run.write(
        "test_mine.py",
        "import pytest\n"
        "@pytest.mark.can_wedge\ndef test_first(pd): [pd.chat('hi') for _ in range(3)]\n"
        "def test_second(pd): pd.chat('hi')\n",
    )
    ran = run("--pd-target=sim", "--pd-sim=--fault hang-before-first-token=after=3", "test_mine.py")
    assert ran.outcomes() == {"test_first": "hung", "test_second": "not run"}, ran.out
    assert "the deployment stopped answering after this probe" in ran.out


def test_latency_is_not_judged_where_it_did_not_settle(run):
    run.write("pdserve.toml", "[sim]\nbudgets.e2e = 0.5\n")
    ran = run("--pd-target=sim", "--pd-sim=--fault never-warm=1", "-k", "settle or stream_is")
    assert ran.outcomes() == {"test_answers_settle": "failed", "test_stream_is_whole": "passed"}, ran.out
    note = next(probe["note"] for probe in ran.record["probes"] if probe["outcome"] == "passed")
    assert note.startswith("latency not judged: the deployment did not settle")
