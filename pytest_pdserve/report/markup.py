"""HTML in which nothing untrusted can become markup: text is escaped unless a tag made it."""

from __future__ import annotations

from html import escape

from pytest_pdserve.report.text import shorten, visible


class Html(str):
    """Markup that `tag` or `join` made, or that stands in our own code; everything else is text."""

    __slots__ = ()


def tag(name: str, *children: str, **attributes: str) -> Html:
    """The element `name` around `children`: `Html` as it is, any other string as visible, escaped text.

    Attribute names are written with `_` for `-` and lose a trailing one (`class_`).
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(visible(value))}"'
        for key, value in attributes.items()
    )
    return Html(f"<{name}{written}>{join(*children)}</{name}>")


def join(*children: str) -> Html:
    """`children` one after the other, text escaped."""
    return Html("".join(child if isinstance(child, Html) else escape(visible(child)) for child in children))


def clipped(text: str, limit: int) -> str:
    """`text` in at most `limit` characters and, where something was cut, how long it was."""
    if len(text) <= limit:
        return text
    return f"{shorten(text, limit)} ({len(text):,} characters, cut here)"
