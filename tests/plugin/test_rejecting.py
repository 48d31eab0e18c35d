"""Runs against deployments with something wrong."""

import os
import re
import signal
import subprocess
import time

import pytest

from pytest_pdserve.sim.launch import start

STORY = "--fault series=17.9,106.4,10.5,inf --time-scale 0.01"
"""The series that was once called a cold start, a hundred times as fast."""
SCALED = "[sim]\nbudgets.e2e = 0.05\nlimits.deadline = 2.5\n"


def test_the_106_second_story(run):
    run.write("pdserve.toml", SCALED)
    ran = run("--pd-target=sim", f"--pd-sim={STORY}")
    assert (ran.code, ran.verdict) == (1, "REJECTED"), ran.out
    settle = next(probe for probe in ran.record["probes"] if "settle" in probe["id"])
    assert settle["outcome"] == "hung"
    finding = settle["findings"][0]
    assert finding["what"].startswith("answer 4 hung: ")
    course = re.search(
        r"answers took ([\d.]+) s, ([\d.]+) s, ([\d.]+) s, never", " ".join(finding["evidence"])
    )
    first, second, third = map(float, course.groups())
    assert second > first > third > 0.05
    assert any("answer 2 took longer than one before it" in line for line in finding["evidence"])
    assert "not a cold start" in ran.out
    # No other probe is lost: each has its own outcome.
    assert len(ran.record["probes"]) == 15
    assert ran.outcomes()["test_service_answers[decode]"] == "passed"
    # The rest would hang like it: it is not waited for.
    assert ran.outcomes()["test_stream_is_whole"] == "not run"
    assert "the deployment is wedged since" in ran.out


def test_a_wedged_proxy_before_idle_engines(run):
    """Everything was healthy and the engines idle while sessions wedged on their kept connections."""
    run.write("pdserve.toml", "[sim]\nlimits.deadline = 3\n")
    ran = run(
        "--pd-target=sim",
        "--pd-sim=--dialect vllm --proxy --fault hang-before-headers=role=proxy,reused=1,after=8",
        "-k",
        "service_answers or short_answers or turn",
    )
    assert (ran.code, ran.verdict) == (1, "REJECTED"), ran.out
    assert all(
        ran.outcomes()[f"test_service_answers[{name}]"] == "passed"
        for name in ("router", "prefill", "decode")
    )
    findings = [finding for probe in ran.record["probes"] for finding in probe["findings"]]
    assert findings
    assert {(finding["layer"], finding["sureness"], finding["rule"]) for finding in findings} == {
        ("proxy", "shown", "connection reuse")
    }
    assert "prefill and decode ran nothing meanwhile" in findings[0]["evidence"]
    # Fresh connections work: nothing is wedged for everybody.
    assert "is wedged since" not in ran.out


def test_a_hang_before_the_first_token_is_reported_where_it_was_met(run):
    run.write("pdserve.toml", "[sim]\nlimits.deadline = 1.5\n")
    ran = run("--pd-target=sim", "--pd-sim=--fault hang-before-first-token")
    assert (ran.code, ran.verdict) == (1, "REJECTED"), ran.out
    assert ran.outcomes()["test_answers_settle"] == "hung"
    assert ran.outcomes()["test_stream_is_whole"] == "not run"
    assert re.search(r"headers after \d\.\d s,\s+then\s+nothing for 1\.[45] s", ran.out), ran.out


def test_a_dead_target_costs_seconds(run):
    began = time.monotonic()
    ran = run("--pd-target=http://127.0.0.1:9")
    assert time.monotonic() - began < 60
    assert (ran.code, ran.verdict) == (1, "REJECTED"), ran.out
    assert ran.outcomes()["test_service_answers[router]"] == "failed"
    assert ran.outcomes()["test_own_code_comes_back[8]"] == "not run"
    assert "connection refused" in ran.out


def test_a_dead_worker_is_named(run):
    with start() as simulation:
        os.kill(simulation.pids["decode-0"], signal.SIGKILL)
        run.write(
            "pdserve.toml",
            f'[targets.x]\nentry = "{simulation.entry}"\nengine = "sglang"\n'
            f'prefill = ["{simulation.prefill[0]}"]\ndecode = ["{simulation.decode[0]}"]\nlimits.deadline = 1.5\n',
        )
        ran = run("--pd-target=x")
    assert (ran.code, ran.verdict) == (1, "REJECTED"), ran.out
    assert ran.outcomes()["test_service_answers[decode]"] == "failed"
    assert ran.outcomes()["test_service_answers[prefill]"] == "passed"
    # A router that waits for both legs hangs with prefill, which waits for decode; another one says 502.
    assert ran.outcomes()["test_answers_settle"] in ("failed", "hung")
    settle = next(probe for probe in ran.record["probes"] if probe["id"].endswith("test_answers_settle"))
    assert (settle["findings"][0]["layer"], settle["findings"][0]["sureness"]) == ("decode", "shown")


def test_a_budget_is_judged_over_all_replies(run, sound_sim):
    run.write(
        "test_mine.py",
        "import pytest\n"
        "@pytest.mark.latency_budget(e2e=1e-6)\ndef test_slow(pd): pd.chat('hi')\n"
        "@pytest.mark.latency_budget(e2e=60)\ndef test_fast(pd): pd.chat('hi')\n",
    )
    ran = run(f"--pd-target={sound_sim.entry}", "test_mine.py")
    # An event loop that was late for as long as the answer took may be to blame, and then it says so.
    assert ran.outcomes()["test_slow"] in ("failed", "inconclusive")
    assert ran.outcomes()["test_fast"] == "passed"
    assert "E2E" in ran.out
    assert "budget 0.001 ms" in ran.out


def test_a_probe_of_ones_own_fails_as_tests_do(run, sound_sim):
    run.write("test_mine.py", "def test_mine(pd):\n    assert pd.chat('hi').text == 'never this'\n")
    ran = run(f"--pd-target={sound_sim.entry}", "test_mine.py")
    assert (ran.code, ran.verdict) == (1, "REJECTED")
    assert "never this" in ran.out


def test_a_probe_that_breaks_accuses_nobody(run, sound_sim):
    run.write("test_mine.py", "def test_mine(pd):\n    pd.chat('hi')\n    {}['x']\n")
    ran = run(f"--pd-target={sound_sim.entry}", "--pd-inconclusive=pass", "test_mine.py")
    assert (ran.code, ran.verdict) == (6, "INCONCLUSIVE"), ran.out
    assert ran.outcomes() == {"test_mine": "broke"}


def test_a_worker_that_dies_loses_only_its_probe(run, sound_sim):
    run.write(
        "test_mine.py",
        "import os\n"
        "def test_dies(pd):\n    pd.chat('hi')\n    os._exit(3)\n"
        "def test_lives(pd):\n    pd.chat('hi')\n",
    )
    ran = run(f"--pd-target={sound_sim.entry}", "-n", "1", "test_mine.py")
    assert (ran.code, ran.verdict) == (6, "INCONCLUSIVE"), ran.out
    assert ran.outcomes() == {"test_dies": "broke", "test_lives": "passed"}


def test_other_tests_that_fail_fail_the_run(run, sound_sim):
    run.write("test_mine.py", "def test_mine(pd): pd.chat('hi')\ndef test_other(): assert False\n")
    ran = run(f"--pd-target={sound_sim.entry}", "test_mine.py")
    assert (ran.code, ran.verdict) == (1, "ACCEPTED")


def test_a_probe_may_not_send_more_than_it_said(run, sound_sim):
    run.write(
        "test_mine.py",
        "import pytest\n"
        "@pytest.mark.sends(requests=1, prompt_tokens=500, output_tokens=64)\n"
        "def test_mine(pd):\n    pd.chat('hi')\n    pd.chat('hi')\n",
    )
    ran = run(f"--pd-target={sound_sim.entry}", "test_mine.py")
    assert ran.outcomes() == {"test_mine": "broke"}
    assert "sends more than its mark `sends` says: 2 requests of 1" in ran.out


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_keeps_what_it_measured(run, sound_sim, sent):
    run.write(
        "test_mine.py",
        "import time\n"
        "def test_done(pd):\n    pd.chat('hi')\n"
        "def test_waits(pd):\n    open('waiting', 'w').close()\n    time.sleep(30)\n",
    )
    process = subprocess.Popen(
        run.command(f"--pd-target={sound_sim.entry}", "test_mine.py"),
        cwd=run.folder,
        env=run.environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        deadline = time.monotonic() + 60
        while not (run.folder / "waiting").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(sent)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    ran = run.left(process.returncode, out)
    assert ran.code == 2
    assert ran.verdict == "INCONCLUSIVE"
    assert ran.record["incomplete"] == "interrupted"
    assert ran.outcomes()["test_done"] == "passed"
    assert list(run.folder.glob("reports/*/latest/report.html"))


@pytest.mark.parametrize("scope", ["call", "never ends"])
def test_the_backstop_ends_a_probe_and_not_the_run(run, sound_sim, scope):
    body = "import time\n    time.sleep(20)" if scope == "call" else "while True: pass"
    run.write(
        "test_mine.py",
        f"import pytest\n@pytest.mark.timeout(1)\ndef test_stuck(pd):\n    {body}\n"
        "def test_next(pd):\n    pd.chat('hi')\n",
    )
    ran = run(f"--pd-target={sound_sim.entry}", "test_mine.py")
    assert ran.outcomes() == {"test_stuck": "hung", "test_next": "passed"}, ran.out
    assert ran.code == 1
