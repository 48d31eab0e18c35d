"""Text that others wrote, made fit to be shown: nothing hidden, nothing that steers a terminal, cut to size."""

from __future__ import annotations

import re
from typing import Final

from rich.cells import get_character_cell_size

_SHORT: Final = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
_UNSEEN: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Printable by Unicode's category, yet drawn as nothing: fillers, joiners, variation selectors, blank braille."""


def visible(text: str) -> str:
    """`text` with everything that does not show as itself written as JSON would: `\\u001b`, `\\u202e`, `\\n`.

    That are control and format characters (ANSI escapes, bidi controls, joiners), blanks other than the plain
    space, lone surrogates, and what no character is assigned to. A command whose body is JSON stays the same
    request. A backslash that was there before stays single.
    """
    if text.isprintable() and not _UNSEEN.search(text):
        return text
    return "".join(char if _shows(char) else _escape(char) for char in text)


def ascii_only(text: str) -> str:
    """`visible(text)` for a terminal that can't be trusted with more than ASCII."""
    return "".join(char if char.isascii() else _escape(char) for char in visible(text))


def shorten(text: str, limit: int, *, mark: str = "…") -> str:
    """The first characters of `text`, at most `limit` (>= 1) with the mark that says something was cut."""
    if len(text) <= limit:
        return text
    return text[: max(limit - len(mark), 0)] + mark[:limit]


def shorten_middle(text: str, limit: int, *, mark: str = " … ") -> str:
    """Beginning and end of `text`, at most `limit` (>= 1) characters with the mark between them."""
    if len(text) <= limit:
        return text
    kept = limit - len(mark)
    if kept < 2:
        return shorten(text, limit, mark=mark.strip())
    tail = kept // 3
    return text[: kept - tail] + mark + (text[-tail:] if tail else "")


def cells(text: str) -> int:
    """How many terminal cells `text` takes; for text that went through `visible`."""
    return len(text) if text.isascii() else sum(map(get_character_cell_size, text))


def fit(text: str, width: int, *, mark: str = "…") -> str:
    """`text` in at most `width` cells, with the mark at its end when something was cut."""
    if cells(text) <= width:
        return text
    room = max(width - cells(mark), 0)
    return (text[: _place(text, room)] + mark) if cells(mark) <= width else ""


def wrap(text: str, width: int, lines: int, *, mark: str = "…") -> list[str]:
    """`text` in at most `lines` lines of at most `width` cells, broken at blanks where there are any.

    What is left over goes, and the mark at the end of the last line says so. An empty text is no line.
    """
    wrapped: list[str] = []
    rest = text.strip(" ")
    while rest and len(wrapped) < lines - 1:
        if cells(rest) <= width:
            break
        place = max(_place(rest, width), 1)
        blank = rest.rfind(" ", 1, place + 1)
        # A break that would leave most of the line empty costs more than one within a word.
        place = blank if blank > place // 2 else place
        wrapped.append(rest[:place].rstrip(" "))
        rest = rest[place:].lstrip(" ")
    if rest:
        wrapped.append(fit(rest, width, mark=mark))
    return wrapped


def _shows(char: str) -> bool:
    return char.isprintable() and not _UNSEEN.match(char)


def _escape(char: str) -> str:
    if char in _SHORT:
        return _SHORT[char]
    utf16 = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{utf16[at : at + 4]}" for at in range(0, len(utf16), 4))


def _place(text: str, width: int) -> int:
    """The position in `text` up to which it takes at most `width` cells."""
    taken = 0
    for place, char in enumerate(text):
        taken += get_character_cell_size(char)
        if taken > width:
            return place
    return len(text)
