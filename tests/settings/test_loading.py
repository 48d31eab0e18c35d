import os
from pathlib import Path

import pytest

from pytest_pdserve.settings import SettingsError, TlsFiles, load

FULL = """
[targets.llm-07]
entry = "https://llm-07.example.org/v1/"
router = "http://llm-07:30001"
prefill = ["http://llm-07:30000", "http://llm-08:30000/"]
decode = ["http://llm-07:30002"]
engine = "sglang"
model = "deepseek-v4-flash"
api_key_env = "LLM_KEY"
headers = { X-Tenant = "tenant-secret" }
send_key_to = ["llm-09", "::1"]
tls = { ca = "certs/ca.pem", certificate = "/abs/cert.pem", key = "key.pem" }
budgets = { ttft = 0.8, second_token = 1, itl_p99 = 0.1, e2e = 20 }
limits = { max_concurrency = 64, max_prompt_tokens = 32768, deadline = 120.5 }
deterministic = true

[targets.staging]
entry = "http://staging"
"""


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "pdserve.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def settings(target, folder, environ=None, config=None):
    return load(
        target, config=config, folder=folder, environ={"LLM_KEY": "k-12345"} if environ is None else environ
    )


def message(target, folder, **kwargs):
    with pytest.raises(SettingsError) as caught:
        settings(target, folder, **kwargs)
    text = str(caught.value)
    assert text.isprintable(), "one line, nothing hidden in it"
    return text


def test_every_key_arrives(write, tmp_path):
    file = write(FULL)
    found = settings("llm-07", tmp_path)
    assert found.name == "llm-07"
    assert found.entry == "https://llm-07.example.org"
    assert found.router == "http://llm-07:30001"
    assert found.prefill == ("http://llm-07:30000", "http://llm-08:30000")
    assert found.decode == ("http://llm-07:30002",)
    assert found.engine == "sglang"
    assert found.model == "deepseek-v4-flash"
    assert found.tls == TlsFiles(
        ca=tmp_path / "certs/ca.pem", certificate=Path("/abs/cert.pem"), key=tmp_path / "key.pem"
    )
    assert found.budgets.model_dump() == {"ttft": 0.8, "second_token": 1.0, "itl_p99": 0.1, "e2e": 20.0}
    assert found.limits.model_dump() == {"max_concurrency": 64, "max_prompt_tokens": 32768, "deadline": 120.5}
    assert found.deterministic
    assert not found.layout
    assert not found.simulated
    assert found.file == file
    assert found.listed
    assert found.known == ("llm-07", "staging")
    assert found.credential.headers_for("https://llm-07.example.org/v1/models") == {
        "X-Tenant": "tenant-secret",
        "Authorization": "Bearer k-12345",
    }
    for url in ("http://llm-07:30001", "http://llm-08:30000", "http://llm-09:1", "http://[::1]:2"):
        assert found.credential.trusts(url), url
    for url in ("http://llm-08:30001", "http://llm-10"):
        assert not found.credential.trusts(url), url


def test_defaults(write, tmp_path):
    write(FULL)
    found = settings("staging", tmp_path, environ={})
    assert found.entry == "http://staging"
    assert found.router is None
    assert found.prefill == found.decode == ()
    assert found.engine is found.model is None
    assert found.tls == TlsFiles()
    assert set(found.budgets.model_dump().values()) == {None}
    assert not found.deterministic
    assert found.credential.empty


def test_the_file_is_found_upwards_and_the_nearest_counts(write, tmp_path):
    write('[targets.far]\nentry = "http://far"\n')
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert settings("far", below).entry == "http://far"
    (tmp_path / "a" / "pdserve.toml").write_text('[targets.near]\nentry = "http://near"\n')
    assert settings("near", below).known == ("near",)


def test_a_named_file_counts_instead(write, tmp_path):
    write('[targets.here]\nentry = "http://here"\n')
    other = tmp_path / "other.toml"
    other.write_text('[targets.there]\nentry = "http://there"\n')
    assert settings("there", tmp_path, config=Path("other.toml")).file == other
    assert settings("here", tmp_path, config=other).layout, "only a host of that name then"


def test_a_name_comes_before_a_host(write, tmp_path):
    write('[targets.localhost]\nentry = "http://elsewhere"\n')
    assert settings("localhost", tmp_path).entry == "http://elsewhere"


def test_the_simulation_needs_no_file(tmp_path):
    found = settings("sim", tmp_path)
    assert found.simulated
    assert found.entry is None
    assert found.name == "sim"


def test_the_simulation_has_budgets_and_limits(write, tmp_path):
    write("[sim]\nbudgets.e2e = 0.5\nlimits.deadline = 3\n")
    found = settings("sim", tmp_path)
    assert (found.budgets.e2e, found.limits.deadline) == (0.5, 3.0)


@pytest.mark.parametrize("target", ["sim", "llm-07", "http://somewhere", "staging"])
def test_a_broken_file_is_an_error_for_every_target(write, tmp_path, target):
    file = write("[targets.llm-07]\nentry = 'http://h'\nmodel = \n")
    assert message(target, tmp_path) == f"{file}:3:9: not valid TOML: Invalid value"


def test_wrong_values_elsewhere_in_the_file_are_errors_too(write, tmp_path):
    write(FULL + "engine = 'sglan'\n")
    assert "engine should be" in message("llm-07", tmp_path)


def test_known_names_are_listed_when_a_word_is_no_host_either(write, tmp_path):
    write(FULL)
    assert message("staging ", tmp_path).endswith('(known: llm-07, staging). Did you mean "staging"?')
    assert "known" not in message("http://h:0", tmp_path)


@pytest.mark.parametrize(
    ("line", "saying"),
    [
        (
            "entrry = 1",
            ':3: unknown key "entrry" in [targets.x] (allowed: entry, router, prefill, decode, engine',
        ),
        ("modle = 'x'", 'Did you mean "model"?'),
        ("engine = 'trt'", ":3: [targets.x] engine should be 'sglang', 'vllm', 'dynamo' or 'openai'"),
        ("model = ''", "model should have at least 1 character"),
        ("model = 3", 'model should be a text in quotes, "…" (model to ask for'),
        ("router = 'llm'", "router should be a URL that begins with http:// or https://"),
        ("decode = 'http://a'", 'decode should be a list, ["…"]'),
        ("decode = ['http://a',\n 'ftp://b']", ":3: [targets.x] decode, number 2, should be a URL"),
        (
            "budgets.ttft = 0",
            ":3: [targets.x.budgets] ttft should be greater than 0 (time to first token, seconds)",
        ),
        ("budgets.ttft = '1'", "ttft should be a number"),
        ("budgets.ttft = true", "ttft should be a number"),
        ("budgets.ttft = inf", "ttft should be a finite number"),
        ("budgets.ttft = nan", "ttft should be a finite number"),
        ("budgets = 3", ":3: [targets.x.budgets] should be a table"),
        ("budgets = { tttft = 1 }", '(allowed: ttft, second_token, itl_p99, e2e). Did you mean "ttft"?'),
        ("[targets.x.budgets]\n\nttfft = 1", ":5: unknown key"),
        (
            "limits.max_concurrency = 0",
            "max_concurrency should be greater than or equal to 1 (most requests at once)",
        ),
        ("limits.max_concurrency = 1.5", "max_concurrency should be a whole number"),
        ("deterministic = 1", "deterministic should be true or false"),
        ("deterministic = 'yes'", "deterministic should be true or false"),
        ("tls = { key = 'k.pem' }", ":3: [targets.x.tls] key needs certificate beside it"),
        ("headers = { 'X Y' = 'a' }", "header name should consist of"),
        ("headers = { X = 'a\tb' }", "the value of X contains a character that is not printable ASCII"),
        (
            'headers = { X = "a\\r\\nEvil: 1" }',
            "the value of X contains a character that is not printable ASCII",
        ),
        ("headers = { X = '' }", "the value of X is empty"),
        ("headers = { X = ' a' }", "the value of X begins or ends with white space"),
        ("headers = { Content-Length = '3' }", "Content-Length is set by the transport"),
        ("headers = { x-a = 'b', X-A = 'c' }", "given twice"),
        ("headers = { X = 3 }", ":3: [targets.x.headers] X should be a text in quotes"),
        ("headers = 3", ":3: [targets.x.headers] should be a table"),
        ("api_key_env = 'LLM_KEY'\nheaders = { authorization = 'b' }", "exclude each other"),
        ("api_key_env = 'sk-abc'", "should be the name of an environment variable"),
        ("send_key_to = ['http://x']", "host names or addresses, without scheme and port"),
        ("send_key_to = ['x:80']", "host names or addresses, without scheme and port"),
        ("[targets.y]\nmodel = 'm'", ':3: [targets.y] lacks "entry" (URL at which clients come in'),
        ("[targets.sim]\nentry = 'http://h'", ':3: target name "sim" always means the simulation'),
        ("[targets.'a/b']\nentry = 'http://h'", ':3: target name "a/b" should be 1 to 64'),
        ('[targets."a\\nb"]\nentry = "http://h"', ':3: target name "a\\nb" should be 1 to 64'),
        (
            "[target.y]\nentry = 'http://h'",
            ':3: unknown key "target" in the file (allowed: tables [targets.NAME]).',
        ),
        ("[[targets.y]]\nentry = 'http://h'", ":3: [targets.y] should be a table"),
        ("a = [1,\n2", ":4:2: not valid TOML: Unclosed array"),
        ("entry = 'http://other'", ":3:23: not valid TOML: Cannot overwrite a value"),
    ],
)
def test_what_is_wrong_with_a_file(write, tmp_path, line, saying):
    file = write(f"[targets.x]\nentry = 'http://h'\n{line}")
    text = message("x", tmp_path)
    assert text.startswith(f"{file}:")
    assert saying in text


def test_all_problems_are_counted_and_the_first_in_the_file_is_told(write, tmp_path):
    write("[targets.x]\nentry = 'h'\nbudgets.ttft = -1\n[targets.y]\nmodel = 3\n")
    text = message("x", tmp_path)
    assert ":2: [targets.x] entry should be a URL" in text
    assert text.endswith("(and 3 more)")


@pytest.mark.parametrize(
    ("text", "saying"), [("targets = 3", "[targets] should be a table"), ("targets.x = 3", "[targets.x]")]
)
def test_tables_that_are_none(write, tmp_path, text, saying):
    file = write(text)
    assert message("x", tmp_path) == f"{file}:1: {saying} should be a table".replace(
        "table should be a table", "table"
    )


def test_a_missing_variable(write, tmp_path):
    file = write(FULL)
    assert message("llm-07", tmp_path, environ={}) == (
        f"{file}: [targets.llm-07] api_key_env names LLM_KEY, which is not set"
    )
    assert message("llm-07", tmp_path, environ={"LLM_KEY": ""}).endswith(
        "names LLM_KEY, whose value is empty"
    )
    text = message("llm-07", tmp_path, environ={"LLM_KEY": "k-12345\n"})
    assert text.endswith("whose value begins or ends with white space")
    assert "k-12345" not in text
    assert settings("staging", tmp_path, environ={}).credential.empty, "other targets' keys are not asked for"


def test_a_key_written_where_its_variable_belongs_is_not_repeated(write, tmp_path):
    write('[targets.x]\nentry = "http://h"\napi_key_env = "hf_AbCdEfGh0123"\n')
    text = message("x", tmp_path, environ={})
    assert "hf_" not in text
    assert "api_key_env names a variable, which is not set" in text


def test_files_that_cannot_be_read(write, tmp_path):
    missing = tmp_path / "missing.toml"
    assert (
        message("sim", tmp_path, config=missing) == f"{missing}: cannot be read (no such file or directory)"
    )
    assert message("sim", tmp_path, config=tmp_path) == f"{tmp_path}: is not a regular file"
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert message("sim", tmp_path, config=fifo) == f"{fifo}: is not a regular file"
    assert "NUL" in message("sim", tmp_path, config=Path("a\0b"))
    file = write(b"[targets.x]\nentry = '\xff'\n")
    assert message("sim", tmp_path) == f"{file}:2: is not UTF-8 text (byte 21)"
    write(b"#" * (256 * 1024 + 1))
    assert "larger than 256 KiB" in message("sim", tmp_path)
    write("x = " + "[" * 20_000)
    assert "nested too deeply" in message("sim", tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission(write, tmp_path):
    write(FULL).chmod(0)
    assert "permission denied" in message("sim", tmp_path)


def test_windows_line_ends_and_a_long_wrong_value(write, tmp_path):
    file = write(b"[targets.x]\r\nentry = 'http://h'\r\nengine = 'x'\r\n")
    assert message("x", tmp_path).startswith(f"{file}:3: ")
    write("[targets.x]\nentry = 'http://h'\nsend_key_to = [\n" + "'h',\n" * 2000 + "3]\nmodle = 1\n")
    assert "number 2001" in message("x", tmp_path)
