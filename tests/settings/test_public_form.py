import dataclasses
import json
import traceback

import pytest

from pytest_pdserve.settings import Settings, SettingsError, load

KEY = "sk-pl4nted-0123456789"
TENANT = "tenant-pl4nted"
TEXT = f"""
[targets.llm-07]
entry = "http://llm-07:30001/base"
router = "http://llm-07:30005"
prefill = ["http://llm-07:30000"]
decode = ["http://llm-08:30002"]
engine = "vllm"
model = "m"
api_key_env = "LLM_KEY"
headers = {{ X-Tenant = "{TENANT}" }}
send_key_to = ["llm-09"]
tls.ca = "ca.pem"
budgets.ttft = 0.5
limits.max_concurrency = 8
deterministic = true
"""
ENVIRON = {"LLM_KEY": KEY, "OTHER": "x"}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "pdserve.toml"
    path.write_text(TEXT)
    return path


def read(file, target="llm-07", environ=ENVIRON):
    return load(target, config=None, folder=file.parent, environ=environ)


@pytest.mark.parametrize("target", ["llm-07", "sim", "somewhere", "https://[::1]:8443/x"])
def test_settings_come_back_from_their_public_form(file, target):
    settings = read(file, target)
    travelled = json.loads(json.dumps(settings.public()))
    assert travelled == settings.public(), "plain JSON, lists and all"
    again = Settings.from_public(travelled, ENVIRON)
    assert again == settings
    for url in (settings.entry, "http://llm-09", "http://llm-08:30002", "http://evil"):
        if url is not None:
            assert again.credential.headers_for(url) == settings.credential.headers_for(url)
    assert again.credential.mask(KEY) == settings.credential.mask(KEY)


def test_a_started_simulation_travels_with_its_addresses(file):
    started = dataclasses.replace(
        read(file, "sim"), entry="http://127.0.0.1:4000", prefill=("http://127.0.0.1:4001",)
    )
    assert Settings.from_public(started.public(), {}) == started


def test_no_secret_in_anything_that_is_shown_or_sent(file):
    settings = read(file)
    assert settings.credential.headers_for("http://llm-07:30001")["Authorization"].endswith(KEY), (
        "it is there"
    )
    shown = [repr(settings), str(settings), f"{settings}", json.dumps(settings.public())]
    shown += [repr(dataclasses.asdict(settings)), str(dataclasses.astuple(settings))]
    for text in shown:
        assert "pl4nted" not in text


def test_secrets_that_have_gone(file):
    public = read(file).public()
    with pytest.raises(SettingsError, match="api_key_env names LLM_KEY, which is not set"):
        Settings.from_public(public, {})
    file.write_text('[targets.other]\nentry = "http://h"\n')
    with pytest.raises(SettingsError, match=r"\[targets.llm-07\] has gone since the run began"):
        Settings.from_public(public, ENVIRON)


@pytest.mark.parametrize(
    "line",
    [
        f'headers = {{ "{KEY} x" = "v" }}\nentry = "http://h"',
        f'headers = {{ X = "{KEY}\\n" }}\nentry = "http://h"',
        f'headers = {{ X = ["{KEY}"] }}\nentry = "http://h"',
        f'headers = "{KEY}"\nentry = "http://h"',
        f'api_key_env = "{KEY}"\nentry = "http://h"',
        f'entry = "http://user:{KEY}@h"',
        f'entry = "http://h/?key={KEY}"',
        f'entry = "http://h"\nprefill = ["http://{KEY}@h"]',
        f'entry = "http://h"\nsend_key_to = ["{KEY}@h"]',
        f'entry = "http://h"\nengine = "{KEY}"',
        f'entry = "http://h"\nheaders.X = "{KEY}',
        f'entry = "http://h"\nheaders.X = {KEY}',
    ],
)
def test_no_secret_in_an_error_or_its_traceback(file, line):
    file.write_text(f"[targets.x]\n{line}\n")
    with pytest.raises(SettingsError) as caught:
        read(file, "x")
    assert "pl4nted" not in "".join(traceback.format_exception(caught.value))
