"""The replay command in a real shell."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from pydantic import SecretStr

from pytest_pdserve.chat import ChatClient, chat_request, completion_request, curl
from pytest_pdserve.settings import Credential
from pytest_pdserve.target import Target
from tests.chat.llm_server import LlmServer, sized

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_pdserve.chat import ChatRequest

URL = "http://[::1]:30001/v1/chat/completions"
NASTY = (
    'it\'s "quoted" `id` $(id) $HOME ${HOME} !! !1 \\ \\n \n\r\t tab; rm | & > < * ? ~ # %s \0 \x1b[31m '
    "ünïcödé 日本語 🦊 \u2028 \u202e '\\'' '' '"
)


def request(text: str) -> ChatRequest:
    return chat_request("m", text, max_tokens=8, temperature=0.0, stream=True)


@pytest.fixture
def fake_curl(tmp_path: Path) -> Path:
    """A folder whose `curl` prints its arguments, a NUL behind each."""
    program = tmp_path / "curl"
    program.write_text("#!/bin/sh\nprintf '%s\\0' \"$@\"\n")
    program.chmod(0o755)
    return tmp_path


def arguments(command: str, folder: Path, **variables: str) -> list[str]:
    path = os.pathsep.join([str(folder), os.environ["PATH"]])
    ran = subprocess.run(
        ["sh", "-c", command], env={"PATH": path, **variables}, capture_output=True, timeout=20, check=True
    )
    assert ran.stderr == b""
    return ran.stdout.decode().split("\0")[:-1]


@pytest.mark.parametrize("text", [NASTY, *NASTY.split(" "), "", "\\'", "'\n'"])
def test_a_shell_gives_curl_the_very_body(fake_curl: Path, text: str) -> None:
    given = arguments(curl(URL, request(text), variables={}), fake_curl)
    assert given[:4] == ["-N", URL, "-H", "Content-Type: application/json"]
    assert given[4] == "-d"
    assert json.loads(given[5]) == request(text).body
    assert len(given) == 6


def test_splitting_agrees_with_the_shell() -> None:
    command = curl(URL, request(NASTY), variables={})
    assert json.loads(shlex.split(command)[-1]) == request(NASTY).body
    assert "\n" not in command
    assert "\0" not in command


def test_secrets_are_variables_that_the_shell_fills_in(fake_curl: Path) -> None:
    credential = Credential(
        api_key=SecretStr("sk-0123456789"),
        variable="MY_KEY",
        headers={"X-Team": SecretStr("team-secret")},
        entry="http://router:30001",
    )
    target = Target(name="t", entry="http://router:30001", services=(), engine="openai", model="m")
    command = ChatClient(target, credential=credential).replay(request("hi"))
    assert "sk-0123456789" not in command
    assert "team-secret" not in command
    given = arguments(command, fake_curl, MY_KEY='k "1" $x', X_TEAM="a b")
    assert "X-Team: a b" in given
    assert 'Authorization: Bearer k "1" $x' in given


def test_a_key_that_stands_in_the_question_is_masked() -> None:
    credential = Credential(api_key=SecretStr("sk-0123456789"), entry="http://router:30001")
    target = Target(name="t", entry="http://router:30001", services=(), engine="openai", model="m")
    assert "sk-0123" not in ChatClient(target, credential=credential).replay(
        request("is sk-0123456789 mine?")
    )


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_sends_what_the_probe_sent() -> None:
    asked = completion_request("m", NASTY, max_tokens=1, temperature=0.0, stream=False)
    with LlmServer(lambda _: [sized(b'{"ok": 1}')]) as server:
        command = curl(f"{server.url}{asked.path}", asked, variables={"Authorization": "Bearer $KEY"})
        ran = subprocess.run(
            ["sh", "-c", f"{command} -sS -m 10 --noproxy '*'"],
            env={"PATH": os.environ["PATH"], "KEY": "k"},
            capture_output=True,
            timeout=20,
            check=True,
        )
    assert ran.stdout == b'{"ok": 1}'
    (got,) = server.asked
    assert (got.method, got.path, got.headers["authorization"]) == ("POST", "/v1/completions", "Bearer k")
    assert got.json == asked.body
