"""Without a target the plugin stays out of the way."""

import subprocess
import sys


def test_own_tests_run_as_ever(run):
    run.write("test_mine.py", "def test_mine():\n    pass\n")
    ran = run()
    assert ran.code == 0
    assert "pdserve:" not in ran.out
    assert not (run.folder / "reports").exists()


def test_probes_are_skipped_saying_what_they_need(run):
    run.write(
        "test_mine.py", "def test_mine(pd, pd_http):\n    pd.chat('hi')\ndef test_one(pd_service): pass\n"
    )
    ran = run("-rs")
    assert ran.code == 0
    assert "2 skipped" in ran.out
    assert "needs a deployment: --pd-target" in ran.out


def test_marks_are_known_to_strict_runs(run):
    run.write(
        "test_mine.py",
        "import pytest\n"
        "@pytest.mark.latency_budget(ttft=1)\n@pytest.mark.multi_turn(rounds=2)\n@pytest.mark.disruptive\n"
        "@pytest.mark.needs('copy')\n@pytest.mark.depth('deep')\n"
        "@pytest.mark.sends(requests=1, prompt_tokens=1, output_tokens=1)\n"
        "def test_mine(pd): pass\n",
    )
    assert run("--strict-markers").code == 0


def test_nothing_heavy_is_loaded(tmp_path):
    """What makes start-up slow is loading the house; every module of it costs, and so do the libraries beneath."""
    heavy = [
        "httpx",
        "httptools",
        "msgspec",
        "pydantic",
        "rich",
        "uvicorn",
        "anyio.from_thread",
        "pytest_pdserve.run",
    ]
    code = (
        "import sys, pytest\n"
        "class Look:\n"
        "    def pytest_sessionfinish(self):\n"
        f"        print('loaded', [name for name in {heavy!r} if name in sys.modules])\n"
        "pytest.main(['-q', '--co', '-p', 'no:anyio', '-p', 'no:hypothesispytest'], plugins=[Look()])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path
    )
    assert "loaded []" in done.stdout, done.stdout + done.stderr


def test_help_documents_the_options_in_one_group(run):
    ran = run("--help")
    group = ran.out.split("acceptance of prefill-decode deployments:")[1].split("\n\n")[0]
    for option in (
        "target",
        "config",
        "depth",
        "disruptive",
        "max-concurrency",
        "inconclusive",
        "reports",
        "sim",
    ):
        assert f"--pd-{option}" in group
    assert "PDSERVE_TARGET" in group
