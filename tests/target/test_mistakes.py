import ssl

import pytest
import seen
import trustme
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr
from scripted import Said, Server, babble, hang_up

from pytest_pdserve.settings import Credential
from pytest_pdserve.target import Target, TargetError

KEY = "sk-pl4nted-987"


@pytest.fixture
def mistake(run, ask_target):
    """The one line that a target with these paths gives."""

    def mistake(paths, *, keyed=False, ssl_server=None, suffix="", **kwargs):
        async def scenario():
            async with Server(paths, ssl=ssl_server) as server:
                if keyed:
                    kwargs["credential"] = Credential(api_key=SecretStr(KEY), entry=server.url)
                with pytest.raises(TargetError) as caught:
                    await ask_target(server.url + suffix, **kwargs)
                return str(caught.value).replace(server.url, "URL")

        line = run(scenario())
        assert line.isprintable()
        assert "pl4nted" not in line
        assert len(line) < 400
        return line

    return mistake


def test_missing_rights_without_a_key(mistake):
    line = mistake({"*": Said({"error": "Unauthorized"}, 401)})
    assert line == "router URL answered 401: it wants an API key and none was sent; see api_key_env"


@pytest.mark.parametrize("status", [401, 403])
def test_missing_rights_with_a_key_that_the_server_repeats(mistake, status):
    line = mistake({"*": Said({"error": f"Incorrect API key: {KEY}"}, status)}, keyed=True)
    assert line == f"router URL answered {status}: it does not accept the API key or headers of the settings"


def test_a_router_that_hides_only_workers_and_chat_behind_a_key(mistake):
    paths = seen.sglang_router([], [])
    paths.update({"/workers": Said(b"", 401), "POST /v1/chat/completions": Said(b"", 401)})
    assert "wants an API key and none was sent" in mistake(paths)


def test_a_closed_workers_page_alone_is_noted(run, ask_target):
    async def scenario():
        async with Server({**seen.sglang_router([], []), "/workers": Said(b"", 403)}) as router:
            target = await ask_target(router.url)
            assert f"router {router.url} answered 403 to /workers: it is not asked for them" in target.notes

    run(scenario())


def test_html_instead_of_json(mistake):
    page = b"<!DOCTYPE html>\n<html><head><title>Sign in\x1b[31m</title></head></html>"
    assert mistake({"/v1/models": Said(page)}) == (
        "router URL is no LLM server: to /v1/models it answered an HTML page titled "
        '"Sign in\\x1b[31m", not a list of models'
    )


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b"", "an empty body"),
        (b"hello\r\n\x00\x07\x1b[2J", r'"hello\r\n\x00\x07\x1b[2J"'),
        (b"\xff\xfe", '"\ufffd\ufffd"'),
        (b"x" * 5000, '"' + "x" * 119 + "…" + '"'),
        (b'{"data": [{}]}', '"{"data": [{}]}"'),
        (b'{"data": [{"id": ""}]}', '"{"data": [{"id": ""}]}"'),
        (b'{"data": {"id": "m"}}', '"{"data": {"id": "m"}}"'),
        (b"[1, 2]", '"[1, 2]"'),
        (b"null", '"null"'),
        (b"[" * 100_000, '"' + "[" * 119 + "…" + '"'),
    ],
)
def test_servers_of_another_kind(mistake, body, shown):
    line = mistake({"/v1/models": Said(body)})
    assert line == f"router URL is no LLM server: to /v1/models it answered {shown}, not a list of models"


def test_a_path_that_is_not_there(mistake):
    assert mistake({}, suffix="/base") == (
        "router URL/base is no LLM server, or its base path is another, or it keeps its models to itself and "
        'pdserve.toml must name one: to /v1/models it answered 404 and "{"detail": "Not Found"}"'
    )


def test_what_is_no_http(mistake):
    assert mistake({"*": babble}).startswith("router URL is no LLM server: ")


def test_a_redirect_is_told_and_not_followed(mistake):
    line = mistake({"/v1/models": Said(b"", 302, {"location": "https://login.example.org/"})})
    assert "https://login.example.org/" in line


def test_an_answer_beyond_all_measure(mistake):
    line = mistake({"/v1/models": Said(b" " * (4 * 1024 * 1024 + 1))})
    assert line.startswith("router URL is no LLM server: ")
    assert "an empty body" not in line, "said to be too long, not judged by its beginning"


def test_a_secret_at_the_cut_of_a_long_answer_is_masked_before_it_is_cut(mistake):
    line = mistake({"/v1/models": Said(b"x" * 112 + KEY.encode())}, keyed=True)
    assert "sk-p" not in line
    assert "•••" in line


def test_an_unknown_host(run, ask_target, tmp_path):
    async def scenario(**kwargs):
        with pytest.raises(TargetError) as caught:
            await ask_target("http://lm-07.invalid:30001", **kwargs)
        return str(caught.value)

    assert run(scenario()) == "router http://lm-07.invalid:30001: 'lm-07.invalid': name not found"
    assert run(scenario(layout=True)) == (
        'no host "lm-07.invalid" answers (name not found), and there is no pdserve.toml that names it'
    )
    known = {"file": tmp_path / "pdserve.toml", "known": ("llm-07.invalid", "staging")}
    assert run(scenario(layout=True, **known)) == (
        'no target "lm-07.invalid" in pdserve.toml (known: llm-07.invalid, staging) and no host of that name '
        'answers (name not found). Did you mean "llm-07.invalid"?'
    )


def test_a_certificate_of_an_unknown_authority(mistake):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    line = mistake(seen.vllm_worker(), ssl_server=context)
    assert line.startswith("router URL: ")
    assert "certificate" in line


def test_a_trusted_certificate(run, ask_target):
    authority = trustme.CA()
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(server_context)
    client_context = ssl.create_default_context()
    authority.configure_trust(client_context)

    async def scenario():
        async with Server(seen.vllm_worker(), ssl=server_context) as server:
            return await ask_target(server.url, ssl_context=client_context)

    assert run(scenario()).engine == "vllm"


def test_https_on_a_plain_port(run, ask_target):
    async def scenario():
        async with Server({"connect": babble}) as server:
            with pytest.raises(TargetError, match="TLS"):
                await ask_target(server.url.replace("http:", "https:"))

    run(scenario())


def test_a_server_that_hangs_up_is_a_dead_target(run, ask_target):
    async def scenario():
        async with Server({"*": hang_up}) as server:
            return await ask_target(server.url)

    assert "closed" in (run(scenario()).unreachable or "")


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(
        st.sampled_from(["/v1/models", "/workers", "/health", "POST /v1/chat/completions"]),
        st.builds(
            Said,
            st.binary(max_size=40)
            | st.recursive(
                st.none() | st.integers() | st.text(max_size=5),
                lambda inner: (
                    st.lists(inner, max_size=3)
                    | st.dictionaries(st.sampled_from(["data", "id", "workers", "url", "worker_type"]), inner)
                ),
            ),
            st.sampled_from([200, 204, 301, 400, 401, 403, 404, 429, 500, 503]),
        ),
    )
)
def test_whatever_a_server_says_it_is_a_target_or_one_line(run, ask_target, paths):
    async def scenario():
        async with Server(paths) as server:
            try:
                return await ask_target(server.url)
            except TargetError as error:
                return str(error)

    result = run(scenario())
    if isinstance(result, Target):
        assert Target.from_json(result.to_json()) == result
        result = "".join(result.notes)
    assert result.isprintable()
