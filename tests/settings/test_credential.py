import base64
import copy
import html
import json
import pickle
import re
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from pytest_pdserve.settings import Credential
from pytest_pdserve.settings.credential import MASK

KEY = 'sk-pl4nted/+"&<key>'


def credential(key=KEY, headers=None, **kwargs):
    return Credential(
        api_key=SecretStr(key) if key is not None else None,
        headers={name: SecretStr(value) for name, value in (headers or {}).items()},
        **{"entry": "https://gw.example.org/llm", **kwargs},
    )


@pytest.mark.parametrize(
    ("url", "trusted"),
    [
        ("https://gw.example.org/llm/v1/models", True),
        ("https://GW.example.org:9000/metrics", True),
        ("http://gw.example.org/llm", False),  # in the clear
        ("https://gw.example.org.evil.net/", False),
        ("https://evil.net/gw.example.org", False),
        ("https://gw.example.org@evil.net/", False),
        ("http://named:30000/health", True),
        ("http://named:30001/health", False),
        ("https://named:30000/health", False),
        ("http://friend:1234/x", True),
        ("http://[fd00::7]:30000/", True),
        ("http://127.0.0.1:30000", False),
    ],
)
def test_who_gets_the_secrets(url, trusted):
    secret = credential(
        headers={"X-Tenant": "t"}, named=["http://named:30000"], send_key_to=["friend", "FD00::7"]
    )
    assert secret.trusts(url) is trusted
    expected = {"X-Tenant": "t", "Authorization": f"Bearer {KEY}"} if trusted else {}
    assert secret.headers_for(url) == expected


def test_any_port_of_an_entry_without_tls():
    secret = credential(entry="http://llm-07:30001")
    assert secret.trusts("http://llm-07:30000")
    assert secret.trusts("https://llm-07:30000")
    assert not secret.trusts("http://llm-08:30001")


def test_nobody_is_trusted_without_an_entry():
    assert not Credential(api_key=SecretStr(KEY)).trusts("http://llm-07")
    assert Credential().headers_for("http://llm-07") == {}


def test_empty():
    assert Credential().empty
    assert not credential().empty
    assert not credential(key=None, headers={"X": "y"}).empty


def test_variables_stand_for_secrets():
    secret = credential(headers={"X-Tenant.Id": "tenant"}, variable="LLM_KEY")
    assert secret.variables_for("https://gw.example.org/llm") == {
        "X-Tenant.Id": "$X_TENANT_ID",
        "Authorization": "Bearer $LLM_KEY",
    }
    assert secret.variables_for("https://other") == {}


FORMS = {
    "plain": lambda key: key,
    "url": lambda key: quote(key, safe=""),
    "url, lower case": lambda key: re.sub("%..", lambda hit: hit[0].lower(), quote(key, safe="")),
    "path": quote,
    "form": quote_plus,
    "json": lambda key: json.dumps({"echo": f"bad key {key}!"}),
    "json, slashes": lambda key: json.dumps(key).replace("/", "\\/"),
    "python": lambda key: repr(f"'{key}'"),
    "html": html.escape,
    "html, text": lambda key: html.escape(key, quote=False),
    "bearer": lambda key: f"Authorization: Bearer {key}",
    "base64": lambda key: base64.b64encode(key.encode()).decode(),
    "base64 url": lambda key: base64.urlsafe_b64encode(key.encode()).decode(),
    "base64 behind 1": lambda key: base64.b64encode(f"u{key}:rest".encode()).decode(),
    "base64 behind 2": lambda key: base64.b64encode(f"u:{key}".encode()).decode(),
    "base64 behind 3": lambda key: base64.b64encode(f"me:{key} and more".encode()).decode(),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_masked(form):
    text = FORMS[form](KEY)
    masked = credential().mask(f"before {text} after {text}")
    assert masked.count(MASK) == 2
    assert masked.startswith("before ")
    for part in ("pl4nted", base64.b64encode(b"pl4nted").decode()[1:7]):
        assert part not in masked


@settings(deadline=None)
@given(
    st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=4, max_size=40),
    st.sampled_from(sorted(FORMS)),
    st.text(max_size=10),
)
def test_no_printable_key_survives(key, form, around):
    text = FORMS[form](key)
    masked = credential(key).mask(text)
    assert MASK in masked
    assert key not in masked.replace(MASK, "")
    assert credential(key).mask(around + MASK) == around + MASK or key in around or key in MASK


def test_header_values_are_secrets_with_and_without_their_scheme():
    secret = credential(key=None, headers={"Authorization": "Basic dXNlcjpodW50ZXIy", "X-Tenant": "tenant-7"})
    masked = secret.mask("got Basic dXNlcjpodW50ZXIy; dXNlcjpodW50ZXIy of tenant-7; Basic auth")
    assert masked == f"got {MASK}; {MASK} of {MASK}; Basic auth"


def test_the_longer_of_two_secrets_is_masked_whole():
    assert credential("abcd", headers={"X": "abcdefgh"}).mask("abcdefgh") == MASK


def test_short_values_do_not_shred_the_text():
    assert credential("abc").mask("abc abc") == "abc abc"
    assert Credential().mask("anything") == "anything"


def test_a_credential_shows_and_gives_away_nothing():
    secret = credential(headers={"X-Tenant": "tenant-7"})
    for text in (repr(secret), str(secret), f"{secret}", repr(vars(type(secret)))):
        assert "pl4nted" not in text
        assert "tenant-7" not in text
    assert "X-Tenant" in repr(secret)
    assert copy.copy(secret) is copy.deepcopy(secret) is secret
    with pytest.raises(TypeError, match="does not travel"):
        pickle.dumps(secret)
