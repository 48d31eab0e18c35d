"""Runs against a sound deployment."""

import html
import json

import pytest

STAGE_ORDER = ["health", "correctness", "sessions", "stress"]


def test_a_sound_deployment_is_accepted_and_leaves_its_report(run):
    ran = run("--pd-target=sim")
    assert ran.code == 0, ran.out
    assert ran.verdict == "ACCEPTED"
    assert "pdserve: plan standard: at most " in ran.out
    assert " ACCEPTED   sim in " in ran.out
    stages = [probe["stage"] for probe in ran.record["probes"]]
    assert stages == sorted(stages, key=STAGE_ORDER.index)
    assert set(stages) == set(STAGE_ORDER)
    assert all(probe["outcome"] == "passed" for probe in ran.record["probes"])
    latest = run.folder / "reports" / "sim" / "latest"
    assert "ACCEPTED" in (latest / "report.html").read_text()
    assert "<testcase" in (latest / "junit.xml").read_text()
    block = ran.out.split(" acceptance ")[1].split("- Generated html report")[0]
    assert max(map(len, block.splitlines())) <= 80


def test_what_was_sent_keeps_the_plan(run, sound_sim):
    ran = run(f"--pd-target={sound_sim.entry}")
    assert ran.code == 0, ran.out
    most = int(ran.record["plan"].split("at most ")[1].split(" requests")[0].replace(",", ""))
    assert 0 < sum(len(probe["replies"]) for probe in ran.record["probes"]) <= most


def test_workers_share_the_probes(run, sound_sim):
    ran = run(f"--pd-target={sound_sim.entry}", "-n", "2")
    assert ran.code == 0, ran.out
    assert len(ran.record["probes"]) == 15
    assert "pdserve: plan standard: at most " in ran.out


def test_collecting_alone_asks_nothing_of_the_model_and_leaves_nothing(run, sound_sim):
    ran = run(f"--pd-target={sound_sim.entry}", "--co", "-q")
    assert ran.code == 0
    assert "suites/health/test_ready.py::test_service_answers[router]" in ran.out
    assert not (run.folder / "reports").exists()


@pytest.mark.parametrize("option", ["--markers", "--fixtures", "--setup-plan"])
def test_looking_at_the_tests_probes_nothing_and_leaves_nothing(run, sound_sim, option):
    ran = run(f"--pd-target={sound_sim.entry}", option)
    assert ran.code == 0, ran.out
    assert "acceptance" not in ran.out.splitlines()
    assert not (run.folder / "reports").exists()


def test_a_selection_is_called_one(run, sound_sim):
    ran = run(f"--pd-target={sound_sim.entry}", "-k", "code_comes_back")
    assert ran.code == 0, ran.out
    assert "picked: 3 of 15 probes" in ran.out


def test_a_selection_that_checks_no_content_is_inconclusive(run, sound_sim):
    ran = run(f"--pd-target={sound_sim.entry}", "-k", "settle")
    assert (ran.code, ran.verdict) == (6, "INCONCLUSIVE")
    assert "nothing shows that answers are right" in ran.out


def test_an_empty_selection_ran_nothing(run, sound_sim):
    assert run(f"--pd-target={sound_sim.entry}", "-k", "no_such_probe").code == 5


def test_the_environment_names_the_target(run, sound_sim):
    ran = run("-k", "code_comes_back", PDSERVE_TARGET=sound_sim.entry)
    assert (ran.code, ran.verdict) == (0, "ACCEPTED"), ran.out


def test_a_named_target_brings_its_settings(run, sound_sim):
    run.write(
        "pdserve.toml",
        f'[targets.staging]\nentry = "{sound_sim.entry}"\nbudgets.e2e = 60\nlimits.max_concurrency = 4\n',
    )
    ran = run("--pd-target=staging", "-k", "code_comes_back")
    assert ran.code == 0, ran.out
    assert ran.record["target"]["name"] == "staging"
    assert ran.outcomes()["test_own_code_comes_back[8]"] == "skipped"


@pytest.mark.parametrize(
    ("args", "code"), [([], 6), (["--pd-inconclusive=pass"], 0)], ids=["fails", "passes when asked to"]
)
def test_a_model_that_cannot_copy_is_not_held_against_the_deployment(run, args, code):
    ran = run("--pd-target=sim", "--pd-sim=--model-skill none", *args)
    assert (ran.code, ran.verdict) == (code, "INCONCLUSIVE"), ran.out
    outcomes = ran.outcomes()
    assert outcomes["test_code_comes_back[streamed]"] == "skipped"
    assert outcomes["test_stream_is_whole"] == "passed"
    assert "the model copied 0 of 6 codes" in ran.out


def test_own_probes_run_beside_the_bundled_ones(run, sound_sim):
    run.write("test_mine.py", "def test_mine(pd):\n    assert pd.chat('code: 111222').completed\n")
    alone = run(f"--pd-target={sound_sim.entry}", "test_mine.py")
    assert (alone.code, list(alone.outcomes())) == (0, ["test_mine"]), alone.out
    assert "1 probes that state no limit" in alone.out
    both = run(f"--pd-target={sound_sim.entry}", "--pd-with-suites", "test_mine.py")
    assert (both.code, len(both.outcomes())) == (0, 16), both.out


def test_the_probe_of_the_readme_works(run, sound_sim):
    readme = (run.readme).read_text()
    code = readme.split("<!-- own probe -->")[1].split("```python\n")[1].split("```")[0]
    run.write("test_readme.py", code)
    ran = run(f"--pd-target={sound_sim.entry}", "test_readme.py")
    assert ran.code == 0, ran.out


def test_other_requests_go_over_the_same_transport(run, sound_sim):
    run.write(
        "test_mine.py",
        "def test_models(pd, pd_http):\n"
        "    answer = pd_http.get('/v1/models')\n"
        "    assert answer.json()['data'][0]['id'] == pd.model\n"
        "    pd.chat('hi')\n",
    )
    ran = run(f"--pd-target={sound_sim.entry}", "test_mine.py")
    assert ran.code == 0, ran.out


def test_a_name_with_markup_does_nothing_in_the_page(run, sound_sim):
    run.write(
        "test_mine.py",
        "import pytest\n"
        "@pytest.mark.parametrize('x', ['<img src=x onerror=alert(1)>'])\ndef test_mine(pd, x): pd.chat('hi')\n",
    )
    ran = run(f"--pd-target={sound_sim.entry}", "test_mine.py")
    assert ran.code == 0, ran.out
    # A script makes the rows from JSON in an attribute, and sets each cell as markup.
    page = next(run.folder.glob("reports/*/latest/report.html")).read_text()
    blob = json.loads(html.unescape(page.split('data-jsonblob="')[1].split('"')[0]))
    cells = [cell for tests in blob["tests"].values() for test in tests for cell in test["resultsTableRow"]]
    assert any("onerror" in cell for cell in cells)
    assert not any("<img" in cell for cell in cells)


def test_depth_and_disruptive_choose_probes(run, sound_sim):
    run.write(
        "test_mine.py",
        "import pytest\n"
        "def test_quick(pd): pd.chat('hi')\n"
        "@pytest.mark.depth('deep')\ndef test_deep(pd): pd.chat('hi')\n"
        "@pytest.mark.disruptive\ndef test_rough(pd): pd.chat('hi')\n",
    )
    usual = run(f"--pd-target={sound_sim.entry}", "test_mine.py", "-rs")
    assert usual.outcomes() == {"test_quick": "passed", "test_rough": "skipped"}
    assert "only with --pd-disruptive" in usual.out
    whole = run(f"--pd-target={sound_sim.entry}", "test_mine.py", "--pd-depth=deep", "--pd-disruptive")
    assert set(whole.outcomes().values()) == {"passed"}
    assert len(whole.outcomes()) == 3


def test_the_record_can_be_read_again(run, sound_sim):
    from pytest_pdserve.report import read_record

    ran = run(f"--pd-target={sound_sim.entry}", "-k", "code_comes_back")
    record = read_record(next(ran.folder.glob("reports/*/latest/record.json")))
    assert record.verdict.outcome == "ACCEPTED"
    assert json.loads(json.dumps(ran.record))["schema"] == record.schema
