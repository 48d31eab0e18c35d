"""A synchronous httpx client over the transport on the loop thread."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from pytest_pdserve.wire import BridgeTransport, LoopThread, Transport
from tests.chat.llm_server import CLOSE, END, HANG, Asked, LlmServer, Part, chunk, head, sized

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


@pytest.fixture(scope="module")
def loop() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.close()


@contextmanager
def client(
    loop: LoopThread, script: Callable[[Asked], Iterable[Part]], **options: Any
) -> Iterator[httpx.Client]:
    with (
        LlmServer(script) as server,
        httpx.Client(
            base_url=server.url, transport=BridgeTransport(Transport(), loop), trust_env=False, **options
        ) as bridged,
    ):
        yield bridged


def echo(asked: Asked) -> Iterable[Part]:
    framing = asked.headers.get("transfer-encoding") or asked.headers.get("content-length") or "none"
    yield sized(asked.body, kind="text/plain", x_framing=framing, x_method=asked.method)


def test_requests_of_all_kinds(loop: LoopThread) -> None:
    with client(loop, echo) as http:
        assert http.get("/").headers["x-framing"] == "none"
        assert http.post("/", json={"a": 1}).json() == {"a": 1}
        posted = http.post("/", content=iter([b"a" * 10, b"", b"b" * 10]))
        assert (posted.content, posted.headers["x-framing"]) == (b"a" * 10 + b"b" * 10, "chunked")
        files = http.post("/", files={"f": ("n", b"data")})
        assert b'name="f"' in files.content
        assert http.head("/").headers["x-method"] == "HEAD"


def test_a_stream_comes_piece_by_piece(loop: LoopThread) -> None:
    second = threading.Event()

    def script(asked: Asked) -> Iterable[Part]:
        yield head() + chunk(b"one")
        assert second.wait(10)
        yield chunk(b"two") + END

    with client(loop, script) as http, http.stream("GET", "/") as response:
        pieces = response.iter_bytes()
        assert next(pieces) == b"one"
        second.set()
        assert list(pieces) == [b"two"]
        assert response.extensions["timeline"].first_byte is not None


def test_closing_in_mid_stream_leaves_the_client_usable(loop: LoopThread) -> None:
    gone = threading.Event()

    def script(asked: Asked) -> Iterable[Part]:
        if asked.path == "/again":
            yield sized(b"ok")
            return
        yield head() + chunk(b"one")
        try:
            yield HANG
        finally:
            gone.set()

    with client(loop, script) as http:
        with http.stream("GET", "/") as response:
            assert next(response.iter_bytes()) == b"one"
        assert gone.wait(10)
        assert http.get("/again").content == b"ok"


def test_errors_are_httpx_s_own_with_their_request(loop: LoopThread) -> None:
    def script(asked: Asked) -> Iterable[Part]:
        if asked.path == "/cut":
            yield head() + chunk(b"one")
            yield CLOSE
        elif asked.path == "/garbage":
            yield b"\x16\x03 nonsense\r\n\r\n"
            yield CLOSE
        else:
            yield HANG

    with client(loop, script, timeout=httpx.Timeout(5, read=0.2)) as http:
        with pytest.raises(httpx.ReadTimeout) as late:
            http.get("/hang")
        assert late.value.request.url.path == "/hang"
        with pytest.raises(httpx.RemoteProtocolError):
            http.get("/cut")
        with pytest.raises(httpx.RemoteProtocolError):
            http.get("/garbage")
        url = str(http.base_url)
    with (
        httpx.Client(transport=BridgeTransport(Transport(), loop), trust_env=False) as http,
        pytest.raises(httpx.ConnectError, match="connection refused"),
    ):
        http.get(url)


def test_a_caller_unwound_in_mid_stream_leaves_the_loop_alone(loop: LoopThread) -> None:
    class Unwound(BaseException):
        """Not an Exception, as pytest-timeout's."""

    def script(asked: Asked) -> Iterable[Part]:
        yield head() + chunk(b"one")
        yield HANG

    with client(loop, script) as http:
        with http.stream("GET", "/") as response:
            pieces = response.iter_bytes()
            next(pieces)
            with pytest.raises(Unwound):
                pieces.throw(Unwound)
        assert response.is_closed
    assert loop.run(alive, bound=5)


async def alive() -> bool:
    return True
