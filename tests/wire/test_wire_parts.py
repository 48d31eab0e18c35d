"""Stamped bytes, timelines, words, content decoding, name resolution."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import socket
import subprocess
import sys
import threading
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_pdserve.wire import Phase, Stamped, Timeline
from pytest_pdserve.wire.decode import decode
from pytest_pdserve.wire.hang import hang_reason
from pytest_pdserve.wire.resolve import Resolver
from pytest_pdserve.wire.words import counted, seconds, shown, size

CHUNKS = st.lists(st.binary(max_size=30), max_size=8)


def stamped(chunks: list[bytes]) -> Stamped:
    body = Stamped()
    for number, chunk in enumerate(chunks, 1):
        body.append(float(number), chunk)
    return body


@settings(deadline=None)
@given(CHUNKS)
def test_every_byte_knows_when_it_arrived(chunks: list[bytes]) -> None:
    body = stamped(chunks)
    expected = [float(number) for number, chunk in enumerate(chunks, 1) for _ in chunk]
    assert [body.time_of(offset) for offset in range(len(body))] == expected
    assert bytes(body.data) == b"".join(chunks)
    assert list(body) == [(float(number), chunk) for number, chunk in enumerate(chunks, 1) if chunk]
    assert body.chunks == sum(1 for chunk in chunks if chunk)


@pytest.mark.parametrize("offset", [-1, 3])
def test_there_is_no_time_of_what_never_came(offset: int) -> None:
    with pytest.raises(IndexError, match=f"no byte {offset}: there are 3"):
        stamped([b"abc"]).time_of(offset)


def test_a_copy_is_independent() -> None:
    body = stamped([b"abc"])
    copy = body.copy()
    body.append(2.0, b"d")
    assert list(copy) == [(1.0, b"abc")]
    body.clear()
    assert (len(body), body.chunks, list(copy)) == (0, 0, [(1.0, b"abc")])


STEPS = ["admitted", "resolved", "connected", "secured", "sent", "headers", "first_byte", "ended"]


@pytest.mark.parametrize(
    ("reached", "phase"),
    list(
        zip(range(9), [Phase.RESOLVE, Phase.RESOLVE, Phase.CONNECT, Phase.TLS, *list(Phase)[3:]], strict=True)
    ),
)
def test_the_phase_is_what_comes_next(reached: int, phase: Phase) -> None:
    steps: dict[str, Any] = {step: float(number) for number, step in enumerate(STEPS[:reached], 11)}
    timeline = Timeline(started=10.0, tls=True, **steps)
    assert timeline.phase is phase
    assert timeline.offsets() == {step: float(number) for number, step in enumerate(STEPS[:reached], 1)}


def test_phases_without_a_handshake() -> None:
    assert Timeline(started=0.0, resolved=1.0, connected=2.0).phase is Phase.SEND
    assert Timeline(started=0.0, reused=True, tls=True).phase is Phase.SEND


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (999, "999 bytes"),
        (1000, "1.0 kB"),
        (9_949, "9.9 kB"),
        (9_950, "10 kB"),
        (812_345, "812 kB"),
        (999_499, "999 kB"),
        (999_500, "1.0 MB"),
        (16_777_216, "16.8 MB"),
    ],
)
def test_sizes(count: int, text: str) -> None:
    assert size(count) == text


def test_words() -> None:
    assert seconds(0.04) == "0.0 s"
    assert (counted(1, "chunk"), counted(4000, "chunk")) == ("1 chunk", "4,000 chunks")
    assert shown(b"a\x1b[31m\r\nsecond line") == "'a\\x1b[31m'"
    assert shown(b"x" * 100, 5) == "'xxxxx'..."


@pytest.mark.parametrize(
    ("arrivals", "now", "reason"),
    [
        ([1.0], 1.9, "still streaming after 1.9 s: 1 byte in 1 chunk, the last 0.9 s ago"),
        ([1.0], 3.0, "headers after 0.5 s, 1 byte in 1 chunk until 1.0 s, then nothing for 2.0 s"),
        ([4.0, 7.0], 9.0, "still streaming after 9.0 s: 2 bytes in 2 chunks, the last 2.0 s ago"),
        ([4.0, 7.0], 11.0, "headers after 0.5 s, 2 bytes in 2 chunks until 7.0 s, then nothing for 4.0 s"),
    ],
)
def test_streaming_and_stalled_are_told_apart_by_the_gaps_so_far(
    arrivals: list[float], now: float, reason: str
) -> None:
    body = Stamped()
    for at in arrivals:
        body.append(at, b"x")
    timeline = Timeline(started=0.0, sent=0.1, headers=0.5, first_byte=arrivals[0], last_byte=arrivals[-1])
    assert hang_reason(timeline, body, now) == reason


# content decoding


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


PACKERS = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "GZIP": gzip.compress,
    "deflate": zlib.compress,
    "Deflate": raw_deflate,
    "": bytes,
    "identity": bytes,
}


@pytest.mark.parametrize("encoding", PACKERS)
@settings(deadline=None)
@given(content=st.binary(max_size=2000), draw=st.data())
def test_any_chunking_decodes_the_same(encoding: str, content: bytes, draw: st.DataObject) -> None:
    packed = PACKERS[encoding](content)
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(packed)), max_size=6)))
    bounds = [0, *cuts, len(packed)]
    chunks = [packed[a:b] for a, b in itertools.pairwise(bounds)]
    decoded = decode(stamped(chunks), encoding, max_bytes=2000, whole=True)
    assert (bytes(decoded.body.data), decoded.problem) == (content, None)
    assert set(decoded.body.times) <= set(stamped(chunks).times)


def test_gzip_members_follow_each_other() -> None:
    packed = gzip.compress(b"one ") + gzip.compress(b"two")
    assert bytes(decode(stamped([packed]), "gzip", max_bytes=99, whole=True).body.data) == b"one two"


def test_compressed_data_must_be_whole_only_if_the_message_is() -> None:
    packer = zlib.compressobj(wbits=31)
    packed = packer.compress(b"begun") + packer.flush(zlib.Z_SYNC_FLUSH)
    decoded = decode(stamped([packed]), "gzip", max_bytes=99, whole=True)
    assert decoded.problem == "gzip data ends early, after 5 bytes of content"
    assert bytes(decoded.body.data) == b"begun"
    assert decode(stamped([packed]), "gzip", max_bytes=99, whole=False).problem is None
    assert decode(Stamped(), "gzip", max_bytes=99, whole=True).problem is None


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_bombs_are_cut_at_the_limit(encoding: str) -> None:
    packed = PACKERS[encoding](bytes(1_000_000))
    chunks = [packed[i : i + 100] for i in range(0, len(packed), 100)]
    decoded = decode(stamped(chunks), encoding, max_bytes=1234, whole=True)
    assert (len(decoded.body), decoded.problem) == (1234, f"{encoding} content over the limit of 1.2 kB")
    exact = decode(stamped([PACKERS[encoding](bytes(1234))]), encoding, max_bytes=1234, whole=True)
    assert (len(exact.body), exact.problem) == (1234, None)


def test_corrupt_data_keeps_what_came_before() -> None:
    packed = gzip.compress(b"some content")
    decoded = decode(stamped([packed[:-8], bytes(8)]), "gzip", max_bytes=99, whole=True)
    assert bytes(decoded.body.data) == b"some content"
    assert decoded.problem == "not gzip after 12 bytes of content: incorrect data check"


def test_several_encodings_are_not_understood() -> None:
    problem = decode(stamped([b"x"]), "gzip, br", max_bytes=99, whole=True).problem
    assert problem == "content encoding 'gzip, br' is not understood"


# name resolution


def test_a_stuck_look_up_is_shared_and_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    release, calls = threading.Event(), []

    def stuck(*args: Any, **_kwargs: Any) -> list[Any]:
        calls.append(args)
        release.wait(20)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 80))]

    monkeypatch.setattr(socket, "getaddrinfo", stuck)

    async def main() -> None:
        resolver = Resolver()
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(resolver.resolve("stuck.invalid", 80), 0.05)
        waiting = asyncio.create_task(resolver.resolve("stuck.invalid", 80))
        await asyncio.sleep(0.05)
        release.set()
        assert (await asyncio.wait_for(waiting, 5))[0][4] == ("127.0.0.1", 80)
        await asyncio.wait_for(resolver.resolve("stuck.invalid", 80), 5)

    asyncio.run(main())
    assert len(calls) == 2


def test_a_stuck_look_up_holds_up_neither_the_loop_nor_the_interpreter() -> None:
    program = """
import asyncio, socket, time
socket.getaddrinfo = lambda *a, **k: time.sleep(60)
from pytest_pdserve.wire.hang import hang_reason
from pytest_pdserve.wire.resolve import Resolver
async def main():
    try:
        await asyncio.wait_for(Resolver().resolve("stuck.invalid", 80), 0.1)
    except TimeoutError:
        print("gave up")
asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True
    )
    assert (done.stdout, done.stderr) == ("gave up\n", "")


def test_an_answer_after_the_loop_closed_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_a, **_k: release.wait(20) and [])

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(Resolver().resolve("late.invalid", 80), 0.05)

    asyncio.run(main())
    thread = next(thread for thread in threading.enumerate() if thread.name == "resolve late.invalid")
    release.set()
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_addresses_need_no_thread(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "Thread", None)
    found = asyncio.run(Resolver().resolve(host, 80))
    assert found[0][4][:2] == (host, 80)


def test_a_name_that_is_none_is_an_os_error() -> None:
    with pytest.raises(OSError, match="not a valid host name"):
        asyncio.run(asyncio.wait_for(Resolver().resolve("a" * 70 + ".invalid", 80), 10))
