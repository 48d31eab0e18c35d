"""Text that a server sent, made fit for people: one line, cut, and without secrets."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

CUT: Final = 300
"""Characters of a foreign text that are shown at most."""
NESTED: Final = 4
"""Levels of an error document in which its message is looked for."""

_HTML: Final = re.compile(r"\s*<(!doctype html|html|head|body)\b", re.IGNORECASE)
_TITLE: Final = re.compile(r"<title[^>]*>([^<]+)</title>", re.IGNORECASE)
_MESSAGE: Final = re.compile(r'"message"\s*:\s*("(?:[^"\\]|\\.)+")')


def cut(text: str) -> str:
    """`text` on one line, control characters shown as such, at most 300 characters."""
    flat = "".join(_visible(character) for character in " ".join(text[: 4 * CUT].split()))
    return flat if len(flat) <= CUT else flat[: CUT - 1] + "…"


def error_text(body: bytes, mask: Callable[[str], str] = str) -> str:
    """What an error body says: its message where there is one, an HTML page's title, else its start.

    At most 300 characters, masked before they are cut, lest half a secret remains.
    """
    text = mask(body.decode("utf-8", "replace"))
    try:
        said = message_of(msgspec.json.decode(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        said = _first_message(text)
    return cut(mask(said)) if said else described(text)


def described(text: str) -> str:
    """A body for people: `nothing`, an HTML page by its title, else its start."""
    if _HTML.match(text):
        title = _TITLE.search(text)
        return f'an HTML page titled "{cut(title[1])}"' if title else "an HTML page"
    return cut(text) or "nothing"


def message_of(document: Any, nested: int = NESTED) -> str | None:
    """The message of an error in any of the shapes that engines and routers use.

    Seen: `error.message`, `error` or `message` or `detail` as plain strings, a message that is an error itself,
    and `detail` as a list of objects with `msg`.
    """
    if isinstance(document, str):
        return document.strip() or None
    if not nested:
        return None
    if isinstance(document, list):
        parts = (message_of(part, nested - 1) for part in document[:NESTED])
        return "; ".join(part for part in parts if part) or None
    if not isinstance(document, dict):
        return None
    error = document.get("error")
    inner = error if isinstance(error, dict | list) else None
    fields = (inner, document.get("message"), document.get("detail"), document.get("msg"), error)
    return next((said for field in fields if (said := message_of(field, nested - 1))), None)


def _first_message(text: str) -> str | None:
    """The first message in what is JSON only in part: sglang-router cuts a decode worker's error stream in two."""
    found = _MESSAGE.search(text)
    if found is None:
        return None
    try:
        return str(msgspec.json.decode(found[1].encode()))
    except msgspec.DecodeError:
        return found[1][1:-1]


def _visible(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
