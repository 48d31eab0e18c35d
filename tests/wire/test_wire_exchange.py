from __future__ import annotations

import asyncio
import gc
import gzip
import importlib
import re
import socket
import threading
import time
import zlib
from collections.abc import Callable, Coroutine
from typing import Any

import httpx
import pytest
from wire_server import CHUNKED, Peer, Script, Server, answering, chunk, sending, sized

from pytest_pdserve.wire import (
    ConnectionLimits,
    Ending,
    Exchange,
    Outcome,
    Phase,
    Transport,
    exchange,
    tls_context,
)

Run = Callable[[Coroutine[Any, Any, Any]], Any]


def get(run: Run, url: str, *, deadline: float = 10.0, **options: Any) -> Exchange:
    async def main() -> Exchange:
        async with httpx.AsyncClient(transport=Transport()) as client:
            return await exchange(client, client.build_request("GET", url), deadline=deadline, **options)

    result = run(main())
    assert isinstance(result, Exchange)
    assert result.timeline.started is not None
    assert (result.reason == "") == (result.outcome is Outcome.COMPLETED)
    assert "\n" not in result.reason
    return result


def served(run: Run, script: Script, **options: Any) -> Exchange:
    with Server(script) as server:
        return get(run, server.url, **options)


# completed


def test_a_sized_body_completes(run: Run) -> None:
    result = served(run, answering(sized(b"hello", headers=b"X-One: 1\r\nX-One: 2\r\n")))
    assert (result.outcome, result.status, result.phase) == (Outcome.COMPLETED, 200, Phase.DONE)
    assert bytes(result.body.data) == b"hello"
    assert result.headers == (("X-One", "1"), ("X-One", "2"), ("Content-Length", "5"))
    assert result.header("x-ONE") == "1"
    assert result.header("x-two") is None
    assert result.ending is Ending.COMPLETE
    times = list(result.timeline.offsets().values())
    assert times == sorted(times)
    assert set(result.timeline.offsets()) == {
        "admitted", "resolved", "connected", "sent", "headers", "first_byte", "last_byte", "ended",
    }  # fmt: skip
    assert result.timeline.peer is not None
    assert result.timeline.peer.startswith("127.0.0.1:")


def test_chunks_and_trailers_complete_with_a_stamp_for_each_arrival(run: Run) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.send(CHUNKED)
        for data in (b"one ", b"two ", b"three"):
            peer.send(chunk(data))
            time.sleep(0.05)
        peer.send(b"0\r\nX-Sum: 7\r\nX-More: 8\r\n\r\n")

    result = served(run, script)
    assert result.outcome is Outcome.COMPLETED
    assert bytes(result.body.data) == b"one two three"
    assert result.trailers == (("X-Sum", "7"), ("X-More", "8"))
    assert result.body.chunks == 3
    assert result.body.time_of(8) - result.body.time_of(0) >= 0.08
    assert result.timeline.ended is not None
    assert result.timeline.last_byte is not None
    assert result.timeline.ended - result.timeline.last_byte >= 0.03


def test_a_body_until_close_ends_with_fin(run: Run) -> None:
    result = served(run, sending(b"HTTP/1.1 200 OK\r\n\r\nall of it", "fin"))
    assert (result.outcome, result.ending) == (Outcome.COMPLETED, Ending.FIN)
    assert bytes(result.body.data) == b"all of it"


def test_http_1_0_completes(run: Run) -> None:
    result = served(run, sending(b"HTTP/1.0 200 OK\r\n\r\nold", "fin"))
    assert (result.outcome, bytes(result.body.data)) == (Outcome.COMPLETED, b"old")


def test_no_content_completes_without_a_body(run: Run) -> None:
    result = served(run, answering(b"HTTP/1.1 204 No Content\r\n\r\n"))
    assert (result.outcome, len(result.body), result.timeline.first_byte) == (Outcome.COMPLETED, 0, None)


def test_interim_responses_are_passed_over(run: Run) -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
    result = served(run, answering(interim + sized(b"final")))
    assert (result.outcome, result.status, bytes(result.body.data)) == (Outcome.COMPLETED, 200, b"final")


def test_a_gzip_stream_keeps_its_stamps(run: Run) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n")
        packer = zlib.compressobj(wbits=31)
        for data in (b"data: 1\n\n", b"data: 2\n\n"):
            peer.send(chunk(packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH)))
            time.sleep(0.1)
        peer.send(chunk(packer.flush()) + chunk(b""))

    result = served(run, script)
    assert result.outcome is Outcome.COMPLETED
    assert bytes(result.body.data) == b"data: 1\n\ndata: 2\n\n"
    assert result.body.time_of(9) - result.body.time_of(0) >= 0.08


# refused


@pytest.mark.parametrize(
    ("status", "line"), [("503 Service Unavailable", "503 Service Unavailable"), ("401", "401 Unauthorized")]
)
def test_an_error_status_is_refused_with_its_body(run: Run, status: str, line: str) -> None:
    result = served(run, answering(sized(b'{"error": "no"}', status=status)))
    assert (result.outcome, result.reason, result.phase) == (Outcome.REFUSED, line, Phase.DONE)
    assert bytes(result.body.data) == b'{"error": "no"}'


def test_an_error_status_whose_body_breaks_off_is_refused_and_says_so(run: Run) -> None:
    cut = b"HTTP/1.1 500 Oops\r\nContent-Length: 100\r\n\r\npartial"
    result = served(run, sending(cut, "fin"))
    assert (result.outcome, result.ending) == (Outcome.REFUSED, Ending.FIN)
    assert (
        result.reason
        == "500 Oops; connection closed by the server (FIN) after 7 bytes of the body (100 bytes announced)"
    )
    assert bytes(result.body.data) == b"partial"


def test_an_early_413_then_rst_is_read_while_sending(run: Run) -> None:
    def script(peer: Peer) -> None:
        peer.head()
        peer.send(sized(b"too large", status="413 Content Too Large", headers=b"Connection: close\r\n"))
        time.sleep(0.2)
        peer.rst()

    async def main(url: str) -> Exchange:
        async with httpx.AsyncClient(transport=Transport()) as client:
            request = client.build_request("POST", url, content=b"x" * 50_000_000)
            return await exchange(client, request, deadline=10)

    with Server(script) as server:
        result = run(main(server.url))
    assert (result.outcome, result.status, bytes(result.body.data)) == (Outcome.REFUSED, 413, b"too large")
    assert result.timeline.sent is None


# hung


def test_silence_before_headers_hangs(run: Run) -> None:
    result = served(run, sending(b"", "stay"), deadline=0.4)
    assert (result.outcome, result.phase, result.status) == (Outcome.HUNG, Phase.HEADERS, None)
    assert re.fullmatch(r"sent after \d\.\d s, then nothing for \d\.\d s", result.reason)
    assert result.ending is Ending.OPEN


def test_headers_then_silence_hangs(run: Run) -> None:
    result = served(run, sending(CHUNKED, "stay"), deadline=0.8)
    assert (result.outcome, result.phase, result.status) == (Outcome.HUNG, Phase.FIRST_BYTE, 200)
    assert re.fullmatch(r"headers after \d\.\d s, then nothing for \d\.\d s", result.reason)


def test_a_stall_in_the_body_hangs_and_keeps_what_came(run: Run) -> None:
    result = served(run, sending(CHUNKED + chunk(b"data: 1\n\n"), "stay"), deadline=1.5)
    assert (result.outcome, result.phase) == (Outcome.HUNG, Phase.BODY)
    assert re.fullmatch(
        r"headers after \d\.\d s, 9 bytes in 1 chunk until \d\.\d s, then nothing for \d\.\d s", result.reason
    )
    assert bytes(result.body.data) == b"data: 1\n\n"


def test_a_drip_past_the_deadline_is_still_streaming(run: Run) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.send(CHUNKED)
        while True:
            peer.send(chunk(b"x" * 100))
            time.sleep(0.05)

    result = served(run, script, deadline=0.8)
    assert (result.outcome, result.phase) == (Outcome.HUNG, Phase.BODY)
    assert re.fullmatch(
        r"still streaming after \d\.\d s: [\d.]+ (bytes|kB) in \d+ chunks, the last \d\.\d s ago",
        result.reason,
    )


def test_an_error_whose_body_never_comes_hangs_with_its_status(run: Run) -> None:
    result = served(
        run, sending(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 9\r\n\r\n", "stay"), deadline=0.8
    )
    assert result.outcome is Outcome.HUNG
    assert re.fullmatch(r"502 Bad Gateway; headers after \d\.\d s, then nothing for \d\.\d s", result.reason)


def test_a_server_that_does_not_read_hangs_in_send(run: Run) -> None:
    release = threading.Event()

    async def main(url: str) -> Exchange:
        async with httpx.AsyncClient(transport=Transport()) as client:
            request = client.build_request("POST", url, content=b"x" * 50_000_000)
            return await exchange(client, request, deadline=0.5)

    with Server(lambda peer: release.wait(20) and None) as server:
        result = run(main(server.url))
        release.set()
    assert (result.outcome, result.phase) == (Outcome.HUNG, Phase.SEND)
    assert re.fullmatch(r"the server did not take the whole request within \d\.\d s", result.reason)


def test_a_full_backlog_hangs_in_connect(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        port = listener.getsockname()[1]
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        result = get(run, f"http://127.0.0.1:{port}", deadline=0.4)
        for filler in fillers:
            filler.close()
    assert (result.outcome, result.phase, result.ending) == (Outcome.HUNG, Phase.CONNECT, Ending.NONE)
    assert re.fullmatch(r"no answer to the TCP connection attempt for \d\.\d s", result.reason)


def test_a_name_that_never_resolves_hangs_in_resolve(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_a, **_k: release.wait(20) and [])
    result = get(run, "http://stuck.invalid", deadline=0.3)
    release.set()
    assert (result.outcome, result.phase) == (Outcome.HUNG, Phase.RESOLVE)
    assert re.fullmatch(r"the host's name was not resolved within \d\.\d s", result.reason)


def test_while_hung_sees_the_request_still_open_and_then_it_is_closed(run: Run) -> None:
    handed: list[Exchange] = []
    open_then: list[bool] = []

    with Server(sending(CHUNKED + chunk(b"abc"), "stay")) as server:

        async def gather(hung: Exchange) -> None:
            await asyncio.sleep(0.2)
            handed.append(hung)
            open_then.append(not server.closed.acquire(blocking=False))

        result = get(run, server.url, deadline=0.8, while_hung=gather)
        assert server.closed.acquire(timeout=10)
    assert open_then == [True]
    assert handed == [result]
    assert handed[0] is result


def test_a_response_that_completes_during_while_hung_stays_hung_as_handed_over(run: Run) -> None:
    go_on = threading.Event()

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(CHUNKED + chunk(b"early"))
        go_on.wait(10)
        peer.send(chunk(b" late") + chunk(b""))
        peer.until_closed()

    async def gather(_hung: Exchange) -> None:
        go_on.set()
        await asyncio.sleep(0.3)

    result = served(run, script, deadline=0.8, while_hung=gather)
    assert (result.outcome, bytes(result.body.data), result.phase) == (Outcome.HUNG, b"early", Phase.BODY)
    assert result.timeline.ended is None


def test_while_hung_is_cut_off(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("pytest_pdserve.wire.exchange")
    monkeypatch.setattr(module, "WHILE_HUNG_SECONDS", 0.2)
    cancelled = []

    async def gather(_hung: Exchange) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    result = served(run, sending(b"", "stay"), deadline=0.2, while_hung=gather)
    assert result.outcome is Outcome.HUNG
    assert cancelled == [True]


def test_an_error_in_while_hung_is_raised_after_the_connection_is_closed(run: Run) -> None:
    async def gather(_hung: Exchange) -> None:
        raise TimeoutError("my own")

    with Server(sending(b"", "stay")) as server:
        with pytest.raises(TimeoutError, match="my own"):
            get(run, server.url, deadline=0.2, while_hung=gather)
        assert server.closed.acquire(timeout=10)


# broken


def test_a_refused_port_is_broken(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    result = get(run, f"http://127.0.0.1:{port}")
    assert (result.outcome, result.phase, result.ending) == (Outcome.BROKEN, Phase.CONNECT, Ending.NONE)
    assert result.reason == f"connection refused: 127.0.0.1:{port}"


def test_an_unknown_name_is_broken(run: Run) -> None:
    def fail(*_args: object, **_kwargs: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", fail)
        result = get(run, "http://nowhere.invalid")
    assert (result.outcome, result.phase) == (Outcome.BROKEN, Phase.RESOLVE)
    assert result.reason == "'nowhere.invalid': name not found"


@pytest.mark.parametrize(
    ("data", "then", "ending", "reason"),
    [
        (b"", "fin", Ending.FIN, "connection closed by the server (FIN) before any response"),
        (b"", "rst", Ending.RST, "connection reset by the server (RST) before any response"),
        (
            b"HTTP/1.1 20",
            "fin",
            Ending.FIN,
            "connection closed by the server (FIN) within the response's header",
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\nabc",
            "fin",
            Ending.FIN,
            "connection closed by the server (FIN) after 3 bytes of the body (5.0 kB announced)",
        ),
        (
            CHUNKED + b"10\r\nabc",
            "fin",
            Ending.FIN,
            "connection closed by the server (FIN) after 3 bytes of the body, unfinished",
        ),
        (
            CHUNKED + chunk(b"abc"),
            "rst",
            Ending.RST,
            "connection reset by the server (RST) after 3 bytes of the body, unfinished",
        ),
        (
            b"HTTP/1.1 200 OK\r\n\r\nuntil close",
            "rst",
            Ending.RST,
            "connection reset by the server (RST) after 11 bytes of the body, unfinished",
        ),
    ],
    ids=["fin-first", "rst-first", "fin-header", "fin-sized", "fin-chunk", "rst-chunk", "rst-until-close"],
)
def test_a_connection_that_ends_early_is_broken(
    run: Run, data: bytes, then: str, ending: Ending, reason: str
) -> None:
    result = served(run, sending(data, then))
    assert (result.outcome, result.ending, result.reason) == (Outcome.BROKEN, ending, reason)
    assert result.phase is not Phase.DONE
    assert bytes(result.body.data) in data


def test_a_closed_client_breaks_the_exchange(run: Run) -> None:
    async def main(url: str) -> Exchange:
        transport = Transport()
        async with httpx.AsyncClient(transport=transport) as client:
            waiting = asyncio.create_task(exchange(client, client.build_request("GET", url), deadline=10))
            await asyncio.sleep(0.2)
            await transport.aclose()
            assert transport.open_connections == 0
            return await waiting

    with Server(sending(b"", "stay")) as server:
        result = run(main(server.url))
    assert (result.outcome, result.reason) == (Outcome.BROKEN, "the client was closed")


# garbled


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", "not an HTTP/1.1 response: it starts with 'SSH-2.0-OpenSSH_9.6'"),
        (
            b"\x00\x00\x12\x04\x00\x00\x00\x00\x00",
            "not an HTTP/1.1 response: the server speaks HTTP/2 only there",
        ),
        (
            b"\x15\x03\x03\x00\x02\x02\x46",
            "not an HTTP/1.1 response: the server speaks TLS there (is it https?)",
        ),
        (b"HTTP/2 200 OK\r\n\r\n", "not an HTTP/1.1 response: it starts with 'HTTP/2 200 OK'"),
        (b"HTTP/0.9 200 OK\r\n\r\n", "answered in HTTP/0.9, not HTTP/1.1"),
        (
            b"HTTP/1.1 200 OK\r\nbad header\r\n\r\n",
            "not HTTP in the response's header: invalid header token",
        ),
        (
            CHUNKED + chunk(b"abc") + b"zz\r\n",
            "not HTTP after 3 bytes of the body, unfinished: invalid character in chunk size",
        ),
        (
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
            "answered 101 Switching Protocols, which was not asked for",
        ),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            "transfer encoding 'gzip, chunked' is not supported",
        ),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 80_000, "response header over the limit (66 kB, 256 fields)"),
        (
            b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 300 + b"\r\n",
            "response header over the limit (66 kB, 256 fields)",
        ),
        (CHUNKED + b"0\r\nX: " + b"y" * 80_000, "over 66 kB of chunk framing without any data"),
        (sized(b"", status="799 Odd"), "status 799 does not exist"),
        (
            sized(b"", status="307 Temporary Redirect", headers=b"Location: http://x/?api_key=abc\r\n"),
            "307 Temporary Redirect: a redirect to 'http://x/', not followed",
        ),
        (sized(b"", status="304 Not Modified"), "304 Not Modified: not asked for"),
        (
            sized(b"abc", headers=b"Content-Encoding: br\r\n"),
            "content encoding 'br' is not understood",
        ),
        (
            sized(b"not gzip", headers=b"Content-Encoding: gzip\r\n"),
            "not gzip after 0 bytes of content: incorrect header check",
        ),
    ],
)
def test_what_is_not_the_protocol_is_garbled(run: Run, data: bytes, reason: str) -> None:
    result = served(run, sending(data, "stay"))
    assert (result.outcome, result.reason) == (Outcome.GARBLED, reason)


def test_an_endless_stream_meets_the_size_limit(run: Run) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.send(CHUNKED)
        while True:
            peer.send(chunk(b"x" * 10_000))

    result = served(run, script, max_bytes=1_000_000)
    assert (result.outcome, result.reason) == (Outcome.GARBLED, "response body over the limit of 1.0 MB")
    assert result.ending is Ending.OPEN
    assert 1_000_000 <= len(result.body) < 1_500_000


def test_a_gzip_bomb_meets_the_size_limit(run: Run) -> None:
    bomb = gzip.compress(bytes(20_000_000))
    result = served(run, answering(sized(bomb, headers=b"Content-Encoding: gzip\r\n")), max_bytes=1_000_000)
    assert (result.outcome, result.reason) == (Outcome.GARBLED, "gzip content over the limit of 1.0 MB")
    assert len(result.body) == 1_000_000


# connections


def test_a_stale_connection_that_dies_on_use_says_that_it_was_reused(run: Run) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.send(sized(b"first"))
        peer.request()
        peer.rst()

    async def main(url: str) -> tuple[Exchange, Exchange]:
        async with httpx.AsyncClient(transport=Transport()) as client:
            first = await exchange(client, client.build_request("GET", url), deadline=10)
            await asyncio.sleep(0.2)
            return first, await exchange(client, client.build_request("GET", url), deadline=10)

    with Server(script) as server:
        first, second = run(main(server.url))
    assert (first.outcome, first.timeline.reused) == (Outcome.COMPLETED, False)
    assert (second.outcome, second.timeline.reused, second.ending) == (Outcome.BROKEN, True, Ending.RST)
    assert re.search(r"before any response on a reused connection, idle for \d\.\d s before$", second.reason)
    assert len(server.peers) == 1


def test_cancelling_an_exchange_closes_its_connection(run: Run) -> None:
    async def main(server: Server) -> None:
        transport = Transport()
        async with httpx.AsyncClient(transport=transport) as client:
            task = asyncio.create_task(exchange(client, client.build_request("GET", server.url), deadline=10))
            await asyncio.sleep(0.2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await asyncio.to_thread(server.closed.acquire, True, 10)
            assert transport.open_connections == 0

    with Server(sending(CHUNKED, "stay")) as server:
        run(main(server))


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_cancelling_at_any_moment_leaves_nothing_open(run: Run, scheme: str) -> None:
    context = tls_context(ca=None, certificate=None, key=None)

    async def main(url: str) -> None:
        transport = Transport(ssl_context=context, limits=ConnectionLimits(connections=1))
        async with httpx.AsyncClient(transport=transport) as client:
            for turns in range(60):
                task = asyncio.create_task(exchange(client, client.build_request("GET", url), deadline=20))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            await asyncio.sleep(0.02)
            assert transport.open_connections == 0

    with Server(lambda peer: peer.until_closed()) as server:
        run(main(server.url.replace("http", scheme)))
    gc.collect()  # a socket that nobody closed would warn now, which is an error


def test_waiting_for_the_pool_past_the_deadline_hangs(run: Run) -> None:
    async def main(url: str) -> Exchange:
        transport = Transport(limits=ConnectionLimits(connections=1))
        async with httpx.AsyncClient(transport=transport) as client:
            first = asyncio.create_task(exchange(client, client.build_request("GET", url), deadline=1))
            await asyncio.sleep(0.1)
            second = await exchange(client, client.build_request("GET", url), deadline=0.3)
            await first
            return second

    with Server(sending(b"", "stay")) as server:
        result = run(main(server.url))
    assert (result.outcome, result.ending) == (Outcome.HUNG, Ending.NONE)
    assert re.fullmatch(r"no connection became free for \d\.\d s \(the pool's limit\)", result.reason)


def test_the_key_is_never_in_a_reason_or_repr(run: Run) -> None:
    async def main(url: str) -> Exchange:
        async with httpx.AsyncClient(
            transport=Transport(), headers={"Authorization": "Bearer s3cret"}
        ) as client:
            return await exchange(client, client.build_request("GET", url), deadline=5)

    with Server(sending(b"nonsense", "fin")) as server:
        result = run(main(server.url))
    assert "s3cret" not in repr(result)


def test_programming_errors_are_raised(run: Run) -> None:
    async def main() -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(lambda _: httpx.Response(200))) as client:
            with pytest.raises(TypeError, match="Transport"):
                await exchange(client, client.build_request("GET", "http://x"), deadline=5)
        async with httpx.AsyncClient(transport=Transport()) as client:
            with pytest.raises(httpx.UnsupportedProtocol, match="ftp"):
                await exchange(client, client.build_request("GET", "ftp://x"), deadline=5)

    run(main())


def test_only_decodable_encodings_are_offered(run: Run) -> None:
    heads: list[bytes] = []

    def script(peer: Peer) -> None:
        heads.append(peer.request())
        peer.send(sized(b""))

    async def main(url: str) -> None:
        async with httpx.AsyncClient(transport=Transport()) as client:
            request = client.build_request("GET", url, headers={"Accept-Encoding": "gzip, br, zstd"})
            await exchange(client, request, deadline=5)

    with Server(script) as server:
        run(main(server.url))
    assert b"accept-encoding: gzip, deflate\r\n" in heads[0].lower()
