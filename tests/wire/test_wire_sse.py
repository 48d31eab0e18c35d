from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_pdserve.wire import Event, EventStream, SseLimits, Stamped, read_events


def stamped(*chunks: bytes) -> Stamped:
    """Chunks that arrived at 1.0, 2.0, ..."""
    body = Stamped()
    for number, chunk in enumerate(chunks, 1):
        body.append(float(number), chunk)
    return body


def read(*chunks: bytes) -> EventStream:
    return read_events(stamped(*chunks))


def data(*chunks: bytes) -> list[str]:
    result = read(*chunks)
    assert result.error is None
    return [event.data for event in result.events]


@pytest.mark.parametrize("eol", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
def test_every_line_ending_and_its_stamps(eol: bytes) -> None:
    result = read(
        b"data: one" + eol + eol + b"data: t", b"wo" + eol, eol, b"data: three" + eol + eol + b"da", b"ta: x"
    )
    assert result.events == [Event("one", 1.0), Event("two", 3.0), Event("three", 4.0)]
    assert (result.rest, result.error) == ("data: x", None)


def test_line_endings_may_differ_within_a_stream() -> None:
    assert data(b"data: a\r\ndata: b\n\rdata: c\r\r\ndata: d\n\n") == ["a\nb", "c", "d"]


def test_a_crlf_split_between_chunks_is_one_line_end() -> None:
    assert data(b"data: a\r", b"\ndata: b\r", b"\n\r", b"\n") == ["a\nb"]


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"data\n\n", [""]),
        (b"data:\n\n", [""]),
        (b"data: \n\n", [""]),
        (b"data:  two blanks\n\n", [" two blanks"]),
        (b"data:none\n\n", ["none"]),
        (b"data: a\ndata\ndata: b\n\n", ["a\n\nb"]),
        (b": comment\n\n", []),
        (b": comment\ndata: x\n: other\n\n", ["x"]),
        (b"datum: x\n\n", []),
        (b" data: x\n\n", []),
        (b"Data: x\n\n", []),
        (b"event: only\n\n", []),
        (b"retry: 100\ndata: x\n\n", ["x"]),
        (b"\n\n\n\ndata: x\n\n\n\n\ndata: y\n\n\n", ["x", "y"]),
        (b"\xef\xbb\xbfdata: x\n\n", ["x"]),
        (b"\xef\xbb\xbf\xef\xbb\xbfdata: x\n\n", []),
        (b"data: \xef\xbb\xbfx\n\n", ["\ufeffx"]),
        (b"data: a:b: c\n\n", ["a:b: c"]),
        ("data: Grüße 漢字 🙂\n\n".encode(), ["Grüße 漢字 🙂"]),
        (b"data: nul\0inside\n\n", ["nul\0inside"]),
        (b"data: line\xe2\x80\xa8separator\n\n", ["line\u2028separator"]),
        (b"", []),
        (b"\n", []),
        (b"\r\n", []),
    ],
)
def test_fields(stream: bytes, expected: list[str]) -> None:
    assert data(stream) == expected


def test_names_and_ids() -> None:
    stream = (
        b"event: first\nid: 1\ndata: a\n\n"
        b"data: b\n\n"
        b"id: no\0t this\ndata: c\n\n"
        b"id\ndata: d\n\n"
        b"event: lost\n\n"
        b"id: 7\n\n"
        b"event\ndata: e\n\n"
    )
    assert read(stream).events == [
        Event("a", 1.0, "first", "1"),
        Event("b", 1.0, "message", "1"),
        Event("c", 1.0, "message", "1"),
        Event("d", 1.0, "message", ""),
        Event("e", 1.0, "message", "7"),
    ]


@pytest.mark.parametrize(
    ("stream", "rest"),
    [
        (b"data: a\n\ndata: cut", "data: cut"),
        (b"data: a\n\ndata: [DONE]\n", "data: [DONE]\n"),
        (b"data: a\n\n: comment\n", ""),
        (b"data: a\n\n\n", ""),
        ("data: a\n\ndata: ü".encode()[:-1], "data: \ufffd"),
        (b"<html>", "<html>"),
        (b"data: " + b"x" * 5000, "data: " + "x" * 494),
    ],
)
def test_the_rest_is_what_was_left_unterminated(stream: bytes, rest: str) -> None:
    result = read(stream)
    assert (result.rest, result.error) == (rest, None)


@pytest.mark.parametrize(
    "stream", [b"data: a\xff\n\n", b"data:a\xff\n\n", b": a\xff\ndata: x\n\n", b"data: \xed\xa0\x80\n\n"]
)
def test_invalid_utf_8_is_reported_with_its_place(stream: bytes) -> None:
    result = read(b"data: good\n\n" + stream + b"data: after\n\n")
    assert [event.data for event in result.events] == ["good"]
    place = 12 + re.search(rb"[^\x00-\x7f]", stream).start()  # type: ignore[union-attr]
    assert result.error is not None
    assert f"not UTF-8 at byte {place} (" in result.error
    assert "behind 1 whole ones" in result.error


@pytest.mark.parametrize("eol", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ([b"data: " + b"x" * 95], "line over the limit of 100 bytes"),
        ([b"data: " + b"x" * 60] * 4, "event over the limit of 200 bytes"),
        ([b"data: x", b""] * 600, "event stream over the limit of 5.0 kB"),
    ],
)
def test_limits(eol: bytes, lines: list[bytes], error: str) -> None:
    limits = SseLimits(line=100, event=200, total=5_000)
    ok = [b"data: " + b"x" * 94, b""] * 20
    assert read_events(stamped(eol.join([*ok, b""])), limits=limits).error is None
    found = read_events(stamped(eol.join([*lines, b"", b""])), limits=limits).error
    assert found is not None
    assert found.startswith(error)


def test_an_unterminated_event_over_the_limit_is_an_error() -> None:
    result = read_events(stamped(b"data: a\n\ndata: " + b"x" * 300), limits=SseLimits(line=100, event=200))
    assert [event.data for event in result.events] == ["a"]
    assert result.error is not None
    assert result.error.startswith("event over the limit")


PIECES = st.sampled_from(
    [
        b"data",
        b":",
        b" ",
        b"x",
        b"event",
        b"id",
        b"retry",
        b"\n",
        b"\r",
        b"\r\n",
        b"\n\n",
        b"\x00",
        b"\xff",
        "ü".encode(),
        "🙂".encode(),
        b"\xef\xbb\xbf",
        b"data: y\n\n",
        b"data: y\r\n\r\n",
    ]
)


@settings(deadline=None)
@given(st.lists(PIECES, max_size=40).map(b"".join), st.data())
def test_any_chunking_gives_the_same_events_and_the_right_stamps(stream: bytes, draw: st.DataObject) -> None:
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    bounds = [0, *cuts, len(stream)]
    chunks = [stream[a:b] for a, b in itertools.pairwise(bounds)]
    whole, cut = read(stream), read(*chunks)
    assert [(event.data, event.name, event.id) for event in whole.events] == [
        (event.data, event.name, event.id) for event in cut.events
    ]
    assert (whole.rest, whole.error) == (cut.rest, cut.error)
    stamps = [event.at for event in cut.events]
    assert stamps == sorted(stamps)
    assert set(stamps) <= set(stamped(*chunks).times)


@settings(deadline=None)
@given(st.lists(PIECES, max_size=40).map(b"".join))
def test_the_events_are_those_of_a_plain_reading_of_the_standard(stream: bytes) -> None:
    result = read(stream)
    if result.error is None:
        assert [(event.data, event.name, event.id) for event in result.events] == standard(stream)
    else:
        with pytest.raises(UnicodeDecodeError):
            stream.decode()


def standard(stream: bytes) -> list[tuple[str, str, str]]:
    """Section 9.2.6, step by step."""
    text = stream.decode("utf-8", "replace").removeprefix("\ufeff")
    events = []
    buffer, name, last_id = "", "", ""
    for line in re.split("\r\n|\r|\n", text)[:-1]:
        if line == "":
            if buffer != "":
                events.append((buffer.removesuffix("\n"), name or "message", last_id))
            buffer, name = "", ""
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            name = value
        elif field == "data":
            buffer += value + "\n"
        elif field == "id" and "\0" not in value:
            last_id = value
    return events


@settings(deadline=None)
@given(st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"])), max_size=10))
def test_what_is_written_is_read(texts: list[str]) -> None:
    stream = b"".join(f"data: {text}\n\n".encode() for text in texts)
    assert data(*(stream[i : i + 1] for i in range(len(stream)))) == texts
