"""The chat client against a scripted server, over the real wire."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from pydantic import SecretStr

from pytest_pdserve.chat import ChatClient, ChatRequest, chat_request, http_client
from pytest_pdserve.evidence import Surroundings
from pytest_pdserve.settings import Credential
from pytest_pdserve.target import Target
from pytest_pdserve.wire import Exchange, Outcome
from tests.chat.llm_server import (
    CLOSE,
    END,
    HANG,
    RESET,
    STREAM,
    Asked,
    LlmServer,
    Part,
    answer,
    event,
    sized,
    token,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pytest_pdserve.chat import Reply


def ask(server: LlmServer | str, use: Callable[[ChatClient], Any], **options: Any) -> Any:
    """What `use(client)` gives, for a client of that server."""
    url = server if isinstance(server, str) else server.url

    async def run() -> Any:
        target = Target(name="t", entry=url, services=(), engine="openai", model="m")
        async with ChatClient(target, **options) as client:
            return await asyncio.wait_for(use(client), 20)

    return asyncio.run(run())


def reply_of(*parts: Part, deadline: float = 10.0, **parameters: Any) -> Reply:
    """The reply to one streamed chat that the server answers with `parts`."""
    with LlmServer(lambda _: parts) as server:
        return ask(server, lambda client: client.chat("hi", deadline=deadline, **parameters))


@pytest.mark.parametrize("stream", [True, False])
def test_chat_is_sent_and_read(stream: bool) -> None:
    with LlmServer(lambda asked: answer(asked, "hello")) as server:
        reply = ask(server, lambda client: client.chat("hi", stream=stream, seed=7, extra={"top_k": 1}))
    assert (reply.outcome, reply.text) == (Outcome.COMPLETED, "hello")
    assert (reply.ttft is not None) == stream
    (asked,) = server.asked
    assert (asked.method, asked.path) == ("POST", "/v1/chat/completions")
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {"stream": False}
    assert asked.json == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 64,
        "temperature": 0.0,
        "seed": 7,
        "top_k": 1,
        **options,
    }
    assert asked.headers["content-type"] == "application/json"
    assert asked.headers["accept-encoding"] == "identity"


def test_a_plain_completion() -> None:
    def script(asked: Asked) -> Iterable[Part]:
        assert asked.path == "/v1/completions"
        assert asked.json["prompt"] == "once"
        yield sized({"choices": [{"index": 0, "text": " upon", "finish_reason": "length"}]})

    with LlmServer(script) as server:
        reply = ask(server, lambda client: client.complete("once", stream=False, max_tokens=1))
    assert (reply.outcome, reply.text) == (Outcome.COMPLETED, " upon")


def test_connections_are_reused_or_fresh_as_asked() -> None:
    async def three(client: ChatClient) -> None:
        await client.chat("1")
        await client.chat("2", connection="reuse")
        await client.chat("3", connection="fresh")

    with LlmServer(lambda asked: answer(asked, "ok")) as server:
        ask(server, three)
    assert [asked.connection for asked in server.asked] == [0, 0, 1]


def test_nothing_is_retried() -> None:
    with LlmServer(lambda _: [sized(b"busy", "503 Service Unavailable", "text/plain")]) as server:
        reply = ask(server, lambda client: client.chat("hi"))
    assert reply.reason == "503 Service Unavailable: busy"
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("parts", "reads", "waited_for"),
    [
        ((HANG,), r"sent after 0\.\d s, then nothing for 0\.\d s", "headers"),
        ((STREAM, HANG), r"headers after 0\.\d s, then nothing for 0\.\d s$", "first token"),
        ((STREAM, token("a"), token("b"), HANG), r"still streaming .*; 2 token events had come", "token 3"),
        (
            (STREAM, token("a", "stop"), event("[DONE]"), HANG),
            r".*; the answer was whole, the response never ended",
            r"the end of the response after \[DONE\]",
        ),
    ],
    ids=["headers", "first token", "token 3", "end"],
)
def test_a_hang_says_where(parts: tuple[Part, ...], reads: str, waited_for: str) -> None:
    reply = reply_of(*parts, deadline=0.4)
    assert reply.outcome is Outcome.HUNG
    assert re.fullmatch(reads, reply.reason)
    assert re.fullmatch(waited_for, reply.waited_for)


def test_evidence_is_gathered_while_the_request_is_open() -> None:
    with LlmServer(lambda _: [HANG]) as server:

        async def look(request: ChatRequest, hung: Exchange) -> Surroundings:
            assert (request.body["max_tokens"], hung.outcome) == (64, Outcome.HUNG)
            return Surroundings(usual=float(server.open_now))

        reply = ask(server, lambda client: client.chat("hi", deadline=0.3), look_around=look)
    assert reply.surroundings == Surroundings(usual=1.0)


def test_no_evidence_is_gathered_for_an_answer() -> None:
    async def look(request: ChatRequest, hung: Exchange) -> Surroundings:
        raise AssertionError

    with LlmServer(lambda asked: answer(asked, "ok")) as server:
        assert ask(server, lambda client: client.chat("hi"), look_around=look).surroundings is None


@pytest.mark.parametrize("end", [CLOSE, RESET], ids=["FIN", "RST"])
def test_a_cut_stream_is_broken(end: Part) -> None:
    reply = reply_of(STREAM, token("a"), token("b"), 0.1, end)
    assert reply.outcome is Outcome.BROKEN
    assert reply.reason.endswith("(after 2 token events)")
    assert reply.text == "ab"


def test_a_clean_end_without_done_is_broken() -> None:
    reply = reply_of(STREAM, token("a"), END)
    assert reply.reason == "the stream ended cleanly without [DONE] (after 1 token event)"


def test_a_refused_port() -> None:
    with LlmServer(lambda _: []) as server:
        url = server.url
    reply = ask(url, lambda client: client.chat("hi", deadline=5))
    assert (reply.outcome, "connection refused" in reply.reason) == (Outcome.BROKEN, True)


def test_a_request_that_is_no_json_is_the_caller_s_mistake() -> None:
    with pytest.raises(TypeError):
        ask("http://127.0.0.1:9", lambda client: client.chat("hi", extra={"x": object()}))


def test_without_a_model_nothing_is_sent() -> None:
    async def run() -> None:
        async with ChatClient(
            Target(name="t", entry="http://127.0.0.1:9", services=(), engine="openai")
        ) as client:
            await client.chat("hi")

    with pytest.raises(ValueError, match=r"t offers no model: name one in pdserve\.toml"):
        asyncio.run(run())


def test_a_client_that_is_not_ours_stays_open() -> None:
    async def run(url: str) -> tuple[bool, bool]:
        target = Target(name="t", entry=url, services=(), engine="openai", model="m")
        http = http_client()
        async with ChatClient(target, http=http) as client:
            await client.chat("hi")
        given = http.is_closed
        await http.aclose()
        async with ChatClient(target) as client:
            own = client._http
            await client.chat("hi")
        return given, own.is_closed

    with LlmServer(lambda asked: answer(asked, "ok")) as server:
        assert asyncio.run(run(server.url)) == (False, True)


def test_the_key_goes_to_the_entry_and_a_caller_s_own_header_stays() -> None:
    async def run(url: str) -> None:
        credential = Credential(api_key=SecretStr("sk-own"), entry=url)
        async with http_client(credential) as http:
            await http.get(f"{url}/with")
            await http.get(f"{url}/other", headers={"Authorization": "Bearer theirs"})
            await http.get(f"http://localhost:{httpx.URL(url).port}/elsewhere")

    with LlmServer(lambda _: [sized(b"")]) as server:
        asyncio.run(run(server.url))
    assert [asked.headers.get("authorization") for asked in server.asked] == [
        "Bearer sk-own",
        "Bearer theirs",
        None,
    ]


def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with LlmServer(lambda asked: answer(asked, "ok")) as server:
        assert ask(server, lambda client: client.chat("hi")).completed


def test_a_redirect_is_not_followed() -> None:
    with LlmServer(lambda _: [sized(b"", "307 Temporary Redirect", location="/elsewhere")]) as server:
        reply = ask(server, lambda client: client.chat("hi"))
        assert reply.outcome is Outcome.GARBLED

        async def get() -> int:
            async with http_client() as http:
                return (await http.get(server.url)).status_code

        assert asyncio.run(get()) == 307
        assert [asked.path for asked in server.asked] == ["/v1/chat/completions", "/"]


def test_what_a_request_may_cost() -> None:
    options: dict[str, Any] = {"temperature": 0.0, "stream": True}
    request = chat_request("m", "ä" * 10, max_tokens=8, n=3, **options)
    assert request.max_tokens == 24
    assert request.most_prompt_tokens == 20 + 32 + 64
    call = {"id": "1", "function": {"name": "f", "arguments": "x" * 1000}}
    told = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    assert chat_request("m", told, max_tokens=1, **options).most_prompt_tokens > 1000
    tools = [{"function": {"name": "ü" * 500}}]
    assert chat_request("m", "", max_tokens=1, tools=tools, **options).most_prompt_tokens > 1000
    assert chat_request("m", "", max_tokens=None, **options).max_tokens == 0
    assert (
        chat_request("m", "", max_tokens=None, extra={"max_completion_tokens": 9}, **options).max_tokens == 9
    )
