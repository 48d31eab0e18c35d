from __future__ import annotations

import itertools
from dataclasses import dataclass

import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_pdserve.wire import Timeline
from pytest_pdserve.wire.failures import ClosedEarly, Garbled
from pytest_pdserve.wire.reader import ResponseReader

TOKEN = st.text("abcXYZ-09", min_size=1, max_size=8).map(lambda name: b"x-" + name.encode())
VALUE = st.text('abc ,;="ü', max_size=12).map(lambda value: value.strip().encode("latin-1"))
FIELDS = st.lists(st.tuples(TOKEN, VALUE), max_size=4)


@dataclass
class Response:
    wire: bytes
    status: int
    fields: list[tuple[bytes, bytes]]
    body: bytes
    trailers: list[tuple[bytes, bytes]]
    until_close: bool


def lines(fields: list[tuple[bytes, bytes]]) -> bytes:
    return b"".join(name + b": " + value + b"\r\n" for name, value in fields)


@st.composite
def responses(draw: st.DrawFn) -> Response:
    status = draw(st.sampled_from([200, 201, 204, 304, 404, 503]))
    fields, trailers = draw(FIELDS), []
    parts = draw(st.lists(st.binary(min_size=1, max_size=20), max_size=5))
    framing = draw(st.sampled_from(["sized", "chunked", "close"]))
    body = b"".join(parts)
    wire = b""
    for interim in draw(st.lists(st.sampled_from([100, 102, 103]), max_size=2)):
        wire += b"HTTP/1.1 %d Interim\r\n%b\r\n" % (interim, lines(draw(FIELDS)))
    if status in (204, 304):
        parts, body, framing = [], b"", "none"
    if framing == "sized":
        fields = [*fields, (b"Content-Length", b"%d" % len(body))]
    elif framing == "chunked":
        fields = [*fields, (b"Transfer-Encoding", b"chunked")]
        trailers = draw(FIELDS)
        body_wire = b"".join(b"%x;ext=1\r\n%b\r\n" % (len(part), part) for part in parts)
        body_wire += b"0\r\n" + lines(trailers) + b"\r\n"
    phrase = draw(st.sampled_from([b"OK", b"Not Really Fine", b""]))
    wire += b"HTTP/1.1 %d %b\r\n%b\r\n" % (status, phrase, lines(fields))
    wire += body_wire if framing == "chunked" else body
    return Response(wire, status, fields, body, trailers, framing == "close")


def cut(data: st.DataObject, wire: bytes) -> list[bytes]:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=10)))
    bounds = [0, *cuts, len(wire)]
    return [wire[a:b] for a, b in itertools.pairwise(bounds) if a < b]


def fed(chunks: list[bytes], method: str = "GET") -> ResponseReader:
    reader = ResponseReader(Timeline(started=0.0, sent=0.0), method=method)
    for number, chunk in enumerate(chunks, 1):
        if reader.over:
            break
        reader.feed(chunk, float(number))
    return reader


@settings(deadline=None)
@given(responses(), st.data())
def test_any_split_of_a_response_reads_the_same(response: Response, data: st.DataObject) -> None:
    chunks = cut(data, response.wire)
    reader = fed(chunks)
    if response.until_close:
        assert not reader.over
        reader.eof(float(len(chunks)))
    assert reader.error is None
    assert reader.complete
    assert reader.head is not None
    assert (reader.head.status, list(reader.head.fields)) == (response.status, response.fields)
    assert bytes(reader.body.data) == response.body
    assert reader.trailers == response.trailers
    assert reader.keep_alive == (not response.until_close)
    assert reader.timeline.ended == float(len(chunks))
    stamps = [reader.body.time_of(offset) for offset in range(len(response.body))]
    assert stamps == sorted(stamps)
    if b";ext=1" not in response.wire:
        arrivals = [float(number) for number, chunk in enumerate(chunks, 1) for _ in chunk]
        assert stamps == arrivals[len(arrivals) - len(stamps) :]


@settings(deadline=None)
@given(responses(), st.data())
def test_a_response_cut_off_anywhere_is_never_complete(response: Response, data: st.DataObject) -> None:
    keep = data.draw(st.integers(0, len(response.wire) - 1))
    reader = fed(cut(data, response.wire[:keep]))
    assert not reader.complete
    reader.eof(99.0)
    if reader.error is None:
        assert response.until_close
        assert response.body.startswith(bytes(reader.body.data))
    else:
        assert isinstance(reader.error, ClosedEarly)
        assert response.body.startswith(bytes(reader.body.data))


@settings(deadline=None)
@given(st.binary(max_size=200), st.data())
def test_garbage_never_raises(garbage: bytes, data: st.DataObject) -> None:
    prefix = data.draw(
        st.sampled_from(
            [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"]
        )
    )
    reader = fed(cut(data, prefix + garbage))
    reader.eof(99.0)
    assert reader.over
    if reader.error is not None:
        assert isinstance(reader.error, Garbled | ClosedEarly)
        assert "\n" not in str(reader.error)


def test_arrivals_are_stamped_by_the_chunk_that_brought_them() -> None:
    chunks = [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n",
        b"\r\n5\r\nab",
        b"cde\r\n1\r\nf\r\n",
        b"0\r\n",
        b"\r\n",
    ]
    reader = fed(chunks)
    assert list(reader.body) == [(2.0, b"ab"), (3.0, b"cdef")]
    timeline = reader.timeline
    assert (timeline.headers, timeline.first_byte, timeline.last_byte, timeline.ended) == (2.0, 2.0, 3.0, 5.0)


def test_head_responses_have_no_body_and_surplus_bytes_spoil_the_connection() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"
    assert (fed([head], "HEAD").complete, fed([head], "HEAD").keep_alive) == (True, True)
    surplus = fed([head + b"hello"], "HEAD")
    assert (surplus.complete, surplus.keep_alive, len(surplus.body)) == (True, False, 0)


def test_surplus_bytes_are_not_part_of_the_body() -> None:
    message = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n"
    reader = fed([message + b"a" + message + b"b"])
    assert (bytes(reader.body.data), reader.keep_alive, reader.trailers) == (b"a", False, [])
    assert reader.body.chunks == 1


def test_a_second_message_spoils_the_connection_even_without_a_body() -> None:
    message = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    assert fed([message]).keep_alive
    assert not fed([message * 2]).keep_alive


@pytest.mark.parametrize("status", [204, 304])
def test_statuses_without_a_body_have_none_whatever_their_header_says(status: int) -> None:
    reader = fed([b"HTTP/1.1 %d X\r\nTransfer-Encoding: chunked\r\n\r\n" % status])
    assert (reader.complete, len(reader.body)) == (True, 0)


def test_our_own_errors_are_not_taken_for_the_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ResponseReader, "_choose_framing", lambda *_: {}["a bug"])
    with pytest.raises(httptools.HttpParserCallbackError):
        fed([b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"])


def test_taking_makes_room_under_the_limit() -> None:
    reader = ResponseReader(Timeline(started=0.0), method="GET")
    reader.set_limit(4)
    reader.feed(b"HTTP/1.1 200 OK\r\n\r\nabcd", 1.0)
    assert reader.take() == b"abcd"
    reader.feed(b"efgh", 2.0)
    assert (reader.received, reader.over, list(reader.body)) == (8, False, [(2.0, b"efgh")])
    reader.feed(b"i", 3.0)
    assert isinstance(reader.error, Garbled)


def test_a_limit_set_late_counts_too() -> None:
    reader = fed([b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabcd"])
    assert reader.complete
    reader.set_limit(3)
    assert (reader.complete, reader.timeline.ended) == (False, None)
    assert str(reader.error) == "response body over the limit of 3 bytes"


def test_many_tiny_chunks_are_not_mistaken_for_framing_without_data() -> None:
    reader = fed([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", *[b"1\r\n", b"x\r\n"] * 30_000])
    assert not reader.over
    assert len(reader.body) == 30_000


def test_empty_lines_before_the_status_line_are_bounded() -> None:
    reader = fed([b"\r\n" * 500] * 100)
    assert str(reader.error).startswith("response header over the limit")


def test_interim_responses_without_end_are_bounded() -> None:
    reader = fed([b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" * 20] * 200)
    assert str(reader.error).startswith("response header over the limit")


@pytest.mark.parametrize("late", [b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nz", b"junk"])
def test_what_is_over_takes_no_notice(late: bytes) -> None:
    reader = fed([b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na"])
    reader.eof(9.0)
    reader.lost(ConnectionResetError())
    reader.fail(ValueError("late"))
    assert (reader.complete, reader.error, reader.timeline.ended) == (True, None, 1.0)
