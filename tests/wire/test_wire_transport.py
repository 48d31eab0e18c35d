from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import httpx
import pytest
from wire_server import CHUNKED, Peer, Server, answering, chunk, sending, sized

from pytest_pdserve.wire import ConnectionLimits, Phase, Timeline, Transport
from pytest_pdserve.wire.connection import Connection, Origin
from pytest_pdserve.wire.pool import Pool

Run = Callable[[Coroutine[Any, Any, Any]], Any]


def many(peer: Peer) -> None:
    """Answer every request with the number of its connection."""
    while True:
        peer.request()
        peer.send(sized(b"%d" % peer.number))


# reuse


def test_connections_are_reused_unless_a_fresh_one_is_asked_for(run: Run) -> None:
    async def main(url: str) -> list[str]:
        async with httpx.AsyncClient(transport=Transport()) as client:
            first = await client.get(url)
            second = await client.get(url)
            third = await client.get(url, extensions={"connection": "fresh"})
            timelines = [response.extensions["timeline"] for response in (first, second, third)]
            assert [timeline.reused for timeline in timelines] == [False, True, False]
            assert timelines[1].connected is None
            assert timelines[1].idle >= 0
            return [first.text, second.text, third.text]

    with Server(many) as server:
        assert run(main(server.url)) == ["0", "0", "1"]
        assert len(server.peers) == 2


@pytest.mark.parametrize(
    "response",
    [
        sized(b"x", headers=b"Connection: close\r\n"),
        b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx",
        sized(b"x") + b"more than asked for",
        sized(b"x") + sized(b"y"),
        sized(b"x", headers=b"Connection: close\r\n") + b"more",
    ],
    ids=["close", "http/1.0", "surplus", "second-response", "surplus-after-close"],
)
def test_connections_that_cannot_be_reused_are_not(run: Run, response: bytes) -> None:
    async def main(url: str) -> None:
        transport = Transport()
        async with httpx.AsyncClient(transport=transport) as client:
            for _ in range(2):
                assert (await client.get(url)).text == "x"
            await asyncio.sleep(0.05)
            assert transport.open_connections == 0

    with Server(sending(response, "stay")) as server:
        run(main(server.url))
        assert len(server.peers) == 2


def test_http_1_0_with_keep_alive_is_reused(run: Run) -> None:
    response = b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\nx"

    async def main(url: str) -> None:
        async with httpx.AsyncClient(transport=Transport()) as client:
            assert (await client.get(url)).text == (await client.get(url)).text == "x"

    with Server(answering(response, response)) as server:
        run(main(server.url))
        assert len(server.peers) == 1


def test_an_idle_connection_whose_end_was_seen_is_dropped(run: Run) -> None:
    async def main(url: str) -> None:
        transport = Transport()
        async with httpx.AsyncClient(transport=transport) as client:
            await client.get(url)
            await asyncio.sleep(0.2)
            assert transport.open_connections == 0
            response = await client.get(url)
            assert not response.extensions["timeline"].reused

    with Server(answering(sized(b"x"))) as server:
        run(main(server.url))
        assert len(server.peers) == 2


def test_an_idle_connection_on_which_anything_arrives_is_dropped(run: Run) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.send(sized(b"x"))
        time.sleep(0.1)
        peer.send(sized(b"", status="408 Request Timeout"))
        peer.until_closed()

    async def main(url: str) -> None:
        transport = Transport()
        async with httpx.AsyncClient(transport=transport) as client:
            await client.get(url)
            assert transport.open_connections == 1
            await asyncio.sleep(0.3)
            assert transport.open_connections == 0
            assert (await client.get(url)).status_code == 200

    with Server(script) as server:
        run(main(server.url))


def test_idle_connections_are_limited_in_number_and_time(run: Run) -> None:
    async def main(url: str) -> None:
        transport = Transport(limits=ConnectionLimits(idle=2, idle_seconds=0.3))
        async with httpx.AsyncClient(transport=transport) as client:
            await asyncio.gather(*(client.get(url) for _ in range(5)))
            await asyncio.sleep(0.05)
            assert transport.open_connections == 2
            await asyncio.sleep(0.5)
            assert transport.open_connections == 0

    with Server(many) as server:
        run(main(server.url))


def test_the_pool_bounds_connections_and_says_so(run: Run) -> None:
    async def main(url: str) -> None:
        transport = Transport(limits=ConnectionLimits(connections=2))
        async with httpx.AsyncClient(transport=transport) as client:
            held = [await client.send(client.build_request("GET", url), stream=True) for _ in range(2)]
            with pytest.raises(httpx.PoolTimeout, match=r"within 0\.2 s \(limit: 2 connections\)"):
                await client.get(url, timeout=httpx.Timeout(5, pool=0.2))
            waiting = asyncio.create_task(client.get(url))
            await asyncio.sleep(0.1)
            assert not waiting.done()
            assert transport.open_connections == 2
            await held[0].aclose()
            await asyncio.sleep(0.1)
            assert transport.open_connections == 2
            waiting.cancel()
            await held[1].aclose()

    with Server(sending(CHUNKED, "stay")) as server:
        run(main(server.url))


def test_an_idle_connection_makes_room_for_another_host(run: Run) -> None:
    async def main(one: str, two: str) -> None:
        transport = Transport(limits=ConnectionLimits(connections=1))
        async with httpx.AsyncClient(transport=transport) as client:
            for url in (one, two, one):
                assert (await client.get(url, timeout=5)).status_code == 200
                await asyncio.sleep(0.05)
                assert transport.open_connections == 1

    with Server(many) as one, Server(many) as two:
        run(main(one.url, two.url))
        assert (len(one.peers), len(two.peers)) == (2, 1)


def test_failed_connections_give_their_place_back(run: Run) -> None:
    async def main(url: str) -> None:
        transport = Transport(limits=ConnectionLimits(connections=1))
        async with httpx.AsyncClient(transport=transport) as client:
            for _ in range(3):
                with pytest.raises(httpx.ConnectError):
                    await client.get("http://127.0.0.1:1", timeout=5)
            assert (await client.get(url, timeout=5)).status_code == 200

    with Server(many) as server:
        run(main(server.url))


# bodies for any httpx user


def test_streaming_yields_bytes_as_they_come(run: Run) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.send(CHUNKED)
        for data in (b"one", b"two"):
            peer.send(chunk(data))
            time.sleep(0.1)
        peer.send(chunk(b""))

    async def main(url: str) -> list[bytes]:
        async with (
            httpx.AsyncClient(transport=Transport()) as client,
            client.stream("GET", url) as response,
        ):
            return [data async for data in response.aiter_bytes()]

    with Server(script) as server:
        assert run(main(server.url)) == [b"one", b"two"]


def test_a_slow_consumer_holds_the_server_back(run: Run) -> None:
    sent = [0]

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 40000000\r\n\r\n")
        for _ in range(400):
            peer.send(bytes(100_000))
            sent[0] += 100_000

    async def main(url: str) -> int:
        async with (
            httpx.AsyncClient(transport=Transport()) as client,
            client.stream("GET", url) as response,
        ):
            await asyncio.sleep(0.5)
            assert sent[0] < 30_000_000
            assert len(response.extensions["incoming"].body) < 2_000_000
            total = 0
            async for data in response.aiter_raw():
                total += len(data)
            return total

    with Server(script) as server:
        assert run(main(server.url)) == 40_000_000


def test_abandoning_a_stream_closes_the_connection(run: Run) -> None:
    async def main(server: Server) -> None:
        transport = Transport()
        async with httpx.AsyncClient(transport=transport) as client:
            async with client.stream("GET", server.url) as response:
                async for _ in response.aiter_raw():
                    break
            assert await asyncio.to_thread(server.closed.acquire, True, 10)
            assert transport.open_connections == 0

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(CHUNKED)
        while True:
            peer.send(chunk(b"x"))
            time.sleep(0.01)

    with Server(script) as server:
        run(main(server))


def test_what_arrived_before_a_reset_is_yielded_first(run: Run) -> None:
    async def main(url: str) -> bytes:
        received = bytearray()

        async def read(response: httpx.Response) -> None:
            async for data in response.aiter_raw():
                received.extend(data)

        async with (
            httpx.AsyncClient(transport=Transport()) as client,
            client.stream("GET", url) as response,
        ):
            await asyncio.sleep(0.3)
            with pytest.raises(httpx.ReadError, match="RST"):
                await read(response)
        return bytes(received)

    with Server(sending(CHUNKED + chunk(b"abc"), "rst")) as server:
        assert run(main(server.url)) == b"abc"


def test_head_and_no_content_have_no_body_and_keep_the_connection(run: Run) -> None:
    async def main(url: str) -> None:
        async with httpx.AsyncClient(transport=Transport()) as client:
            head = await client.head(url)
            assert (head.headers["content-length"], head.content) == ("5", b"")
            assert (await client.get(url)).status_code == 204
            assert (await client.get(url)).status_code == 304
            assert (await client.get(url)).text == "done"

    responses = (
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n",
        sized(b"done"),
    )
    with Server(answering(*responses)) as server:
        run(main(server.url))
        assert len(server.peers) == 1


# sending


def test_request_bodies_arrive_whole(run: Run) -> None:
    received: list[bytes] = []

    def script(peer: Peer) -> None:
        received.append(peer.request())
        peer.send(sized(b"x"))

    body = bytes(range(256)) * 40_000

    async def main(url: str) -> Timeline:
        async with httpx.AsyncClient(transport=Transport()) as client:
            response = await client.post(url, content=body)
            timeline = response.extensions["timeline"]
            assert isinstance(timeline, Timeline)
            return timeline

    with Server(script) as server:
        timeline = run(main(server.url))
    assert received[0].endswith(b"\r\n\r\n" + body)
    assert timeline.sent <= timeline.headers


def test_streamed_request_bodies_are_chunked(run: Run) -> None:
    received: list[bytes] = []

    def script(peer: Peer) -> None:
        data = b""
        while not data.endswith(b"0\r\n\r\n"):
            data += peer.receive()
        received.append(data)
        peer.send(sized(b"x"))

    async def parts() -> AsyncIterator[bytes]:
        for part in (b"one", b"", b"two"):
            yield part
            await asyncio.sleep(0.02)

    async def main(url: str) -> None:
        async with httpx.AsyncClient(transport=Transport()) as client:
            assert (await client.post(url, content=parts())).text == "x"

    with Server(script) as server:
        run(main(server.url))
    assert received[0].endswith(b"\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n")


def test_a_success_before_the_body_is_sent_does_not_stop_it(run: Run) -> None:
    received: list[bytes] = []

    def script(peer: Peer) -> None:
        peer.head()
        peer.send(CHUNKED + chunk(b"go on"))
        data = b""
        while b"0\r\n\r\n" not in data:
            data += peer.receive()
        received.append(data)
        peer.send(chunk(data) + chunk(b""))

    async def parts() -> AsyncIterator[bytes]:
        for _ in range(5):
            yield b"part"
            await asyncio.sleep(0.05)

    async def main(url: str) -> str:
        async with httpx.AsyncClient(transport=Transport()) as client:
            return (await client.post(url, content=parts())).text

    with Server(script) as server:
        assert run(main(server.url)).endswith("4\r\npart\r\n0\r\n\r\n")


def test_an_error_status_stops_the_sending_while_its_body_comes(run: Run) -> None:
    stopped = asyncio.Event()

    async def parts() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"part"
                await asyncio.sleep(0.02)
        finally:
            stopped.set()

    async def main(url: str) -> None:
        async with (
            httpx.AsyncClient(transport=Transport()) as client,
            client.stream("POST", url, content=parts()) as response,
        ):
            assert response.status_code == 503
            await asyncio.wait_for(stopped.wait(), 5)

    def script(peer: Peer) -> None:
        peer.head()
        peer.send(CHUNKED.replace(b"200 OK", b"503 Busy"))
        peer.until_closed()

    with Server(script) as server:
        run(main(server.url))


def test_a_connection_with_a_request_sent_in_part_is_not_reused(run: Run) -> None:
    async def parts() -> AsyncIterator[bytes]:
        while True:
            yield b"part"
            await asyncio.sleep(0.02)

    async def main(url: str) -> None:
        async with httpx.AsyncClient(transport=Transport()) as client:
            for _ in range(2):
                response = await client.post(url, content=parts())
                assert response.status_code == 200
                assert not response.extensions["timeline"].reused

    def script(peer: Peer) -> None:
        peer.head()
        peer.send(sized(b"x"))
        peer.until_closed()

    with Server(script) as server:
        run(main(server.url))
        assert len(server.peers) == 2


def test_an_answer_that_came_before_a_reset_is_read_although_writing_fails_first(run: Run) -> None:
    answer, answered = threading.Event(), threading.Event()

    def script(peer: Peer) -> None:
        peer.head()
        answer.wait(10)
        peer.send(sized(b"too large", status="413 Content Too Large"))
        peer.rst()
        answered.set()

    async def parts() -> AsyncIterator[bytes]:
        yield b"first"
        await asyncio.sleep(0.05)  # now it is written
        answer.set()
        answered.wait(10)  # blocks the loop: the answer and the reset are there, but not read
        yield b"second"

    async def main(url: str) -> str:
        async with httpx.AsyncClient(transport=Transport()) as client:
            return (await client.post(url, content=parts())).text

    with Server(script) as server:
        assert run(main(server.url)) == "too large"


def test_an_error_of_the_request_stream_reaches_the_caller(run: Run) -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield b"one"
        raise KeyError("mine")

    async def main(url: str) -> None:
        transport = Transport()
        async with httpx.AsyncClient(transport=transport) as client:
            with pytest.raises(KeyError, match="mine"):
                await client.post(url, content=parts())
            await asyncio.sleep(0.05)
            assert transport.open_connections == 0

    with Server(lambda peer: peer.until_closed()) as server:
        run(main(server.url))


@pytest.mark.parametrize(("length", "sent"), [("2", b""), ("4", b"one")])
def test_a_body_of_another_length_than_announced_is_refused(run: Run, length: str, sent: bytes) -> None:
    received = bytearray()

    async def parts() -> AsyncIterator[bytes]:
        yield b"one"

    async def main(url: str) -> None:
        async with httpx.AsyncClient(transport=Transport()) as client:
            with pytest.raises(httpx.LocalProtocolError, match=f"not {length} bytes long"):
                await client.post(url, content=parts(), headers={"Content-Length": length})

    def script(peer: Peer) -> None:
        while True:
            received.extend(peer.receive())

    with Server(script) as server:
        run(main(server.url))
        assert server.closed.acquire(timeout=10)
    assert received.partition(b"\r\n\r\n")[2] == sent


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("GET /x HTTP/1.1\r\nX: y\r\n\r\nGET", {}),
        ("GET", {"X": "a\r\nInjected: s3cret"}),
        ("GET", {"X": "a\ns3cret"}),
        ("GET", {"X": "s3cret\0"}),
        ("GET", {"X\r\nInjected": "s3cret"}),
        ("GET", {"X y": "s3cret"}),
        ("CONNECT", {}),
    ],
)
def test_injection_is_rejected_before_anything_is_sent(
    run: Run, method: str, headers: dict[str, str]
) -> None:
    async def main(url: str) -> None:
        async with httpx.AsyncClient(transport=Transport()) as client:
            with pytest.raises(httpx.LocalProtocolError) as caught:
                await client.request(method, url, headers=headers)
            assert "s3cret" not in str(caught.value)

    with Server(lambda peer: peer.until_closed()) as server:
        run(main(server.url))
        assert server.peers == []


# timeouts, closing, misuse


@pytest.mark.parametrize(
    ("data", "phase"),
    [(b"", Phase.HEADERS), (CHUNKED, Phase.FIRST_BYTE), (CHUNKED + chunk(b"x"), Phase.BODY)],
)
def test_read_timeouts_name_the_phase(run: Run, data: bytes, phase: Phase) -> None:
    async def main(url: str) -> None:
        transport = Transport()
        async with httpx.AsyncClient(transport=transport, timeout=0.3) as client:
            with pytest.raises(httpx.ReadTimeout, match=f"nothing came for 0.3 s .waiting for: {phase}"):
                await client.get(url)
            await asyncio.sleep(0.05)
            assert transport.open_connections == 0

    with Server(sending(data, "stay")) as server:
        run(main(server.url))


def test_collect_keeps_the_read_timeout_without_counting_from_the_start(run: Run) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.send(CHUNKED)
        for _ in range(6):
            peer.send(chunk(b"x"))
            time.sleep(0.1)
        peer.until_closed()

    async def main(url: str) -> None:
        async with (
            httpx.AsyncClient(transport=Transport(), timeout=0.4) as client,
            client.stream("GET", url) as response,
        ):
            incoming = response.extensions["incoming"]
            with pytest.raises(httpx.ReadTimeout, match="waiting for: body"):
                await incoming.collect(1000)
            assert bytes(incoming.body.data) == b"xxxxxx"

    with Server(script) as server:
        run(main(server.url))


def test_collect_resumes_a_connection_that_was_held_back(run: Run) -> None:
    async def main(url: str) -> None:
        async with (
            httpx.AsyncClient(transport=Transport()) as client,
            client.stream("GET", url) as response,
        ):
            incoming = response.extensions["incoming"]
            await asyncio.sleep(0.3)
            assert len(incoming.body) < 2_000_000
            assert len(await incoming.collect(40_000_000)) == 30_000_000

    with Server(answering(sized(bytes(30_000_000)))) as server:
        run(main(server.url))


def test_a_write_timeout(run: Run) -> None:
    async def main(url: str) -> None:
        async with httpx.AsyncClient(transport=Transport(), timeout=0.3) as client:
            with pytest.raises(httpx.WriteTimeout, match=r"took nothing of the request for 0\.3 s"):
                await client.post(url, content=bytes(50_000_000))

    def script(peer: Peer) -> None:
        time.sleep(1)
        peer.until_closed()

    with Server(script) as server:
        run(main(server.url))


def test_closing_the_client_closes_idle_and_busy_connections(run: Run) -> None:
    async def main(server: Server) -> None:
        transport = Transport()
        async with httpx.AsyncClient(transport=transport) as client:
            await asyncio.gather(*(client.get(server.url) for _ in range(3)))
            response = await client.send(client.build_request("GET", server.url), stream=True)
            assert transport.open_connections == 3
        assert transport.open_connections == 0
        with pytest.raises(httpx.ReadError, match="the client was closed"):
            await response.aread()
        with pytest.raises(RuntimeError, match="closed"):
            await transport.handle_async_request(httpx.Request("GET", server.url))

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(sized(b"x"))
        peer.request()
        peer.send(CHUNKED)
        peer.until_closed()

    with Server(script) as server:
        run(main(server))


def test_a_connection_that_is_made_after_closing_is_closed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    look_up = socket.getaddrinfo
    release = threading.Event()

    def slow(*args: Any, **options: Any) -> Any:
        release.wait(10)
        return look_up(*args, **options)

    async def main(port: int) -> None:
        transport = Transport()
        async with httpx.AsyncClient(transport=transport) as client:
            waiting = asyncio.create_task(client.get(f"http://localhost:{port}"))
            await asyncio.sleep(0.1)
        release.set()
        with pytest.raises(httpx.TransportError, match="the client was closed"):
            await waiting
        await asyncio.sleep(0.01)
        assert transport.open_connections == 0

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    with Server(many) as server:
        run(main(server.port))


class Wire(asyncio.Transport):
    """A transport that goes nowhere, to play events that a network can't be made to play in order."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def abort(self) -> None:
        pass


def connected(pool: Pool) -> Connection:
    connection = Connection(Origin("http", "somewhere", 80), pool)
    connection.connection_made(Wire())
    pool.add(connection)
    return connection


def test_a_connection_lost_before_its_request_fails_it() -> None:
    async def main() -> None:
        pool = Pool(ConnectionLimits())
        await pool.lease(None)
        connection = connected(pool)
        connection.connection_lost(ConnectionResetError())
        with pytest.raises(httpx.ReadError, match="RST"):
            await asyncio.wait_for(
                connection.request(httpx.Request("GET", "http://somewhere"), Timeline(started=0.0), {}), 5
            )
        assert pool.open == 0

    asyncio.run(main())


def test_an_idle_connection_is_not_handed_out_between_its_fin_and_its_end() -> None:
    async def main() -> None:
        pool = Pool(ConnectionLimits())
        await pool.lease(None)
        connection = connected(pool)
        request = asyncio.create_task(
            connection.request(httpx.Request("GET", "http://somewhere"), Timeline(started=0.0), {})
        )
        await asyncio.sleep(0.01)
        connection.data_received(sized(b""))
        await asyncio.wait_for(request, 5)
        assert pool.take(connection.origin) is connection
        pool.done(connection)
        connection.eof_received()
        assert pool.take(connection.origin) is None
        connection.connection_lost(None)

    asyncio.run(main())


def test_another_loop_is_refused() -> None:
    transport = Transport()

    async def main(url: str) -> None:
        await transport.handle_async_request(httpx.Request("GET", url))
        await transport.aclose()

    with Server(many) as server:
        asyncio.run(main(server.url))
        transport._closed = False
        with pytest.raises(RuntimeError, match="another event loop"):
            asyncio.run(main(server.url))


@pytest.mark.parametrize(
    ("url", "message"), [("ftp://x/", "'ftp'"), ("http:///path", "no host"), ("/path", "''")]
)
def test_unsupported_urls(url: str, message: str) -> None:
    async def main() -> None:
        with pytest.raises(httpx.UnsupportedProtocol, match=message):
            await Transport().handle_async_request(httpx.Request("GET", url))

    asyncio.run(main())


def test_a_wrong_connection_choice_is_an_error() -> None:
    async def main() -> None:
        request = httpx.Request("GET", "http://127.0.0.1:1", extensions={"connection": "frehs"})
        with pytest.raises(ValueError, match="'fresh' or 'reuse', not 'frehs'"):
            await Transport().handle_async_request(request)

    asyncio.run(main())


def test_ipv6(run: Run) -> None:
    async def main(url: str) -> str:
        async with httpx.AsyncClient(transport=Transport()) as client:
            response = await client.get(url)
            return f"{response.text} {response.extensions['timeline'].peer}"

    try:
        server = Server(many, host="::1")
    except OSError as error:
        pytest.skip(f"no IPv6 loopback here: {error}")
    with server:
        assert run(main(server.url)) == f"0 [::1]:{server.port}"


def test_many_at_once(run: Run) -> None:
    async def main(url: str) -> None:
        transport = Transport(limits=ConnectionLimits(connections=20))
        async with httpx.AsyncClient(transport=transport, timeout=20) as client:
            answers = await asyncio.gather(*(client.get(url) for _ in range(200)))
        assert all(answer.status_code == 200 for answer in answers)

    with Server(many) as server:
        run(main(server.url))
        assert len(server.peers) <= 20
