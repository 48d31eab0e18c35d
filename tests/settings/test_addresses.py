import re
from pathlib import Path

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_pdserve.settings import LAYOUT, SettingsError, load
from pytest_pdserve.settings.address import AddressError, base_url, is_host, slug

NOWHERE = Path("/nonexistent")


def entry(target):
    return load(target, config=None, folder=NOWHERE, environ={}).entry


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("llm-07", "http://llm-07:30001"),
        ("LLM-07.example.org", "http://llm-07.example.org:30001"),
        ("10.0.0.7", "http://10.0.0.7:30001"),
        ("::1", "http://[::1]:30001"),
        ("[2001:DB8::7]", "http://[2001:db8::7]:30001"),
        ("llm-07:8000", "http://llm-07:8000"),
        ("llm-07:80", "http://llm-07"),
        ("[::1]:8000", "http://[::1]:8000"),
        ("http://LLM-07", "http://llm-07"),
        ("https://llm-07:443/", "https://llm-07"),
        ("HTTPS://llm-07:80", "https://llm-07:80"),
        ("http://llm-07:30001/v1", "http://llm-07:30001"),
        ("http://llm-07:30001/v1/", "http://llm-07:30001"),
        ("https://gw.example.org/llm/Prod/v1//", "https://gw.example.org/llm/Prod"),
        ("https://gw.example.org/llm%20x", "https://gw.example.org/llm%20x"),
        ("http://[::1]:30001/base/", "http://[::1]:30001/base"),
        ("http://host/v1beta", "http://host/v1beta"),
    ],
)
def test_forms_of_a_target(target, expected):
    assert entry(target) == expected


@pytest.mark.parametrize(
    ("target", "saying"),
    [
        ("", "empty"),
        (" llm-07", "white space"),
        ("llm 07", "white space"),
        ("llm-07\n", "white space"),
        ("http://h/\x00", "character that no address has"),
        ("http:\\\\h", "character that no address has"),
        ("llmé", "xn--"),
        ("ftp://llm-07", "http:// or https://"),
        ("grpc://llm-07:30001", "http:// or https://"),
        ("://", "http:// or https://"),
        ("http://", "names no host"),
        ("http://:80", "names no host"),
        ("http://h:0", "no valid port"),
        ("http://h:", "no valid port"),
        ("http://h:65536", "1 to 65535"),
        ("http://h:http", "1 to 65535"),
        ("http://h:+80", "1 to 65535"),
        ("h:0", "no valid port"),
        ("h:", "no valid port"),
        ("h:99999", "no valid port"),
        ("h:1234567890", "no valid port"),
        ("h:80:90", "no valid port"),
        ("1.2.3", "neither a host"),
        ("256.0.0.1", "neither a host"),
        ("-h", "neither a host"),
        ("a..b", "neither a host"),
        ("a" * 64, "neither a host"),
        (".".join(["a" * 60] * 5), "neither a host"),
        ("[::1", "neither a host"),
        ("[llm-07]", "neither a host"),
        ("[fe80::1%eth0]", "neither a host"),
        ("llm-07/v1", "write http://llm-07/v1"),
        ("http://[::1", "no valid host"),
        ("http://[v1.x]/", "no valid host"),
        ("http://h_/;x?y=1", "no query"),
        ("http://h/x#y", "no fragment"),
        ("http://h?", "no query"),
        ("http://h/%zz", "%-encoding"),
        ("http://h/<x>", "%-encoding"),
        ("http://h/a/../b", ". or .."),
        ("http://h/v1/chat/completions", "up to /v1"),
        ("http://h/" + "x" * 2100, "longer than 2048"),
    ],
)
def test_what_is_no_target(target, saying):
    with pytest.raises(SettingsError) as caught:
        entry(target)
    assert saying in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "target",
    [
        "http://user:hunter2@llm-07",
        "http://hunter2@llm-07:80/v1",
        "user:hunter2@llm-07",
        "hunter2@llm-07:8000",
        "http://llm-07/?api_key=hunter2",
        "http://llm-07/#hunter2",
        "ftp://user:hunter2@llm-07",
        "http://user:hunter2@llm 07",
        "http://user:hunter2@llm-07:99999",
        "http://user:hunter2@[::1",
    ],
)
def test_a_password_in_a_target_is_refused_and_not_repeated(target):
    with pytest.raises(SettingsError) as caught:
        entry(target)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_userinfo_is_refused_with_the_way_out():
    with pytest.raises(SettingsError, match="api_key_env"):
        entry("http://user:secret@llm-07")


def test_only_a_bare_host_means_the_common_layout():
    def layout(target):
        return load(target, config=None, folder=NOWHERE, environ={}).layout

    assert layout("llm-07")
    assert layout("::1")
    assert not layout("llm-07:30001")
    assert not layout("http://llm-07")
    assert (LAYOUT.router, LAYOUT.prefill, LAYOUT.decode) == (30001, 30000, 30002)


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("llm-07", "llm-07"),
        ("10.0.0.7:8000", "10.0.0.7-8000"),
        ("https://gw.example.org/llm/v1", "gw.example.org-llm"),
        ("[::1]:8000", "1-8000"),
        ("http://h/" + "x" * 200, "h-" + "x" * 62),
    ],
)
def test_names_that_can_be_folders(target, name):
    assert load(target, config=None, folder=NOWHERE, environ={}).name == name


PIECES = [
    *("http", "https", "://", ":", "//", "/", "[", "]", "::1", "@", "?", "#", "%", "%41", ".", "..", "v1"),
    *("h", "A-b", "_", "sim", "10.0.0.7", "80", "0", "65536", "user:pw@", " ", "\n", "\0", "\\", "é"),
    *("\N{FULLWIDTH DIGIT ONE}", "\N{RIGHT-TO-LEFT OVERRIDE}", "\ud800"),
]
URLISH = st.lists(st.sampled_from(PIECES), max_size=10).map("".join)


@settings(deadline=None)
@given(st.text(max_size=60) | URLISH)
def test_any_text_gives_settings_or_one_line(target):
    try:
        found = load(target, config=None, folder=NOWHERE, environ={})
    except SettingsError as error:
        line = str(error)
    else:
        line = ""
    assert line == "" or line.isprintable()
    if line:
        return
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,64}", found.name)
    assert found.name.strip(".") == found.name
    if target == "sim":
        assert found.simulated
        assert found.entry is None
        return
    assert base_url(found.entry) == found.entry
    url = httpx.URL(found.entry)
    assert url.scheme in ("http", "https")
    assert is_host(url.host)
    assert url.userinfo == b""
    assert url.query == b""


@settings(deadline=None)
@given(st.text(max_size=40))
def test_slugs_are_folder_names(text):
    assert re.fullmatch(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,63})", slug(text))


def test_a_url_is_said_to_be_wrong_by_its_own_error():
    with pytest.raises(AddressError, match="names no host"):
        base_url("http:///path")
