"""What people get wrong: one clear line each, exit code 4 (or pytest's own for a mark), and no traceback."""

import pytest

from tests.plugin.page import server

KEY = "sk-plugh-1234567890"


def check(ran, *texts):
    assert ran.code == 4, ran.out
    lines = [line for line in ran.out.splitlines() if line.startswith("ERROR: ")]
    assert len(lines) == 1, ran.out
    for text in texts:
        assert text in lines[0]
    assert "Traceback" not in ran.out
    assert KEY not in ran.out
    assert not list(ran.folder.glob("reports/*/*")), "a folder without a report stayed behind"


def test_an_unknown_name(run):
    run.write("pdserve.toml", '[targets.llm-07]\nentry = "http://127.0.0.1:1"\n')
    check(run("--pd-target=lm-07.invalid"), "lm-07.invalid", "known: llm-07")


def test_a_broken_file(run):
    run.write("pdserve.toml", "[targets.x\n")
    check(run("--pd-target=sim"), "pdserve.toml:1")


def test_a_wrong_key(run):
    run.write("pdserve.toml", '[targets.x]\nentry = "http://h"\nmodell = "m"\n')
    check(run("--pd-target=x"), "pdserve.toml:3", "modell", "model")


def test_a_missing_key_variable(run):
    run.write("pdserve.toml", '[targets.x]\nentry = "http://127.0.0.1:1"\napi_key_env = "LLM_KEY"\n')
    check(run("--pd-target=x"), "LLM_KEY", "not set")


@pytest.mark.parametrize("target", ["ftp://h", "http://user:secretpw@h", "http://", "a b", "h:99999"])
def test_a_target_that_is_none(run, target):
    ran = run(f"--pd-target={target}")
    check(ran)
    assert "secretpw" not in ran.out


def test_a_page_instead_of_an_api(run):
    with server(200, b"<html><title>Welcome to nginx!</title></html>", "text/html") as url:
        check(run(f"--pd-target={url}"), "nginx")


def test_a_refused_key(run):
    with server(401, b'{"error": {"message": "bad key"}}') as url:
        run.write("pdserve.toml", f'[targets.x]\nentry = "{url}"\napi_key_env = "LLM_KEY"\n')
        check(run("--pd-target=x", LLM_KEY=KEY), "401")


def test_a_model_that_is_not_served(run, sound_sim):
    run.write("pdserve.toml", f'[targets.x]\nentry = "{sound_sim.entry}"\nmodel = "gpt-9"\n')
    check(run("--pd-target=x"), "gpt-9", sound_sim.model)


def test_wrong_simulator_arguments(run):
    check(run("--pd-target=sim", "--pd-sim=--fault nonsense"), "nonsense")
    check(run("--pd-target=sim", "--pd-sim=--nonsense"), "--nonsense")
    check(run("--pd-target=sim", "--pd-sim=--fault 'x"), "--pd-sim")


def test_a_limit_that_is_none(run):
    check(run("--pd-target=sim", "--pd-max-concurrency=0"), "--pd-max-concurrency", "above 0, not 0")


def test_a_report_folder_that_cannot_be(run):
    run.write("reports", "a file")
    ran = run("--pd-target=sim")
    assert ran.code == 4
    assert "--pd-reports" in ran.out
    assert "Traceback" not in ran.out


def test_a_missing_tls_file(run):
    run.write("pdserve.toml", '[targets.x]\nentry = "https://127.0.0.1:1"\ntls.ca = "gone.pem"\n')
    check(run("--pd-target=x"), "gone.pem")


@pytest.mark.parametrize("workers", [[], ["-n", "1"]], ids=["serial", "xdist"])
@pytest.mark.parametrize(
    ("mark", "text"),
    [
        ("latency_budget(tfft=1)", "tfft"),
        ("latency_budget(ttft=-1)", "ttft has to be a number of seconds above 0"),
        ("concurrency()", "give levels"),
        ("needs('flying')", "known capabilities are copy"),
        ("depth('abyss')", "quick, standard, deep"),
        ("sends(requests=0, prompt_tokens=1, output_tokens=1)", "requests has to be a whole number"),
        ("multi_turn(rounds='x')", "rounds has to be a whole number"),
    ],
)
def test_a_mark_with_wrong_arguments(run, sound_sim, mark, text, workers):
    run.write("test_mine.py", f"import pytest\n@pytest.mark.{mark}\ndef test_mine(pd, level=1): pass\n")
    ran = run(f"--pd-target={sound_sim.entry}", *workers, "test_mine.py")
    assert ran.code != 0
    assert text in " ".join(ran.out.split())
    assert "Traceback" not in ran.out
    assert "INTERNALERROR" not in ran.out


def test_the_key_is_nowhere(run, sound_sim):
    """The key is set, sent, and echoed by a failing probe; no byte of what is printed or written has it."""
    run.write(
        "pdserve.toml",
        f'[targets.x]\nentry = "{sound_sim.entry}"\napi_key_env = "LLM_KEY"\nheaders = {{ X-Team = "{KEY}-team" }}\n',
    )
    run.write(
        "test_mine.py",
        "import os\n"
        "def test_mine(pd):\n"
        "    print('printed', os.environ['LLM_KEY'])\n"
        "    reply = pd.chat('say ' + os.environ['LLM_KEY'])\n"
        "    headers = pd.client._credential.headers_for(pd.target.entry)\n"
        "    assert reply.text == headers, headers\n",
    )
    ran = run("--pd-target=x", "test_mine.py", "--showlocals", LLM_KEY=KEY)
    assert ran.code == 1
    assert KEY not in ran.out
    for path in run.folder.glob("reports/**/*"):
        if path.is_file():
            assert KEY.encode() not in path.read_bytes(), path
