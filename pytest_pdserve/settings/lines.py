"""Where in a TOML text a key stands: tomllib tells what a file says but not on which line."""

import tomllib
from collections.abc import Iterator
from typing import Any

LONGEST_VALUE = 500
"""Lines; a longer value ends the search, whose cost grows with the square of it."""


def line_of(text: str, path: tuple[str, ...]) -> int | None:
    """The line (from 1) of the statement that sets `path` or, failing that, the nearest table above it.

    `text` must be valid TOML. A key within a value of several lines is found where the value begins.
    """
    best: int | None = None
    depth = 0
    for number, found in _statements(text):
        common = _common_length(found, path)
        if common > depth:
            best, depth = number, common
    return best


def _statements(text: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Every path that a statement sets, with the number of the statement's first line."""
    table: tuple[str, ...] = ()
    pending = ""
    first = 1
    for number, line in enumerate(text.split("\n"), 1):
        if not pending:
            first = number
        pending += line + "\n"
        try:
            content = tomllib.loads(pending)
        except tomllib.TOMLDecodeError:
            if number - first >= LONGEST_VALUE:
                return
            continue  # a value goes on over the next lines
        if pending.lstrip().startswith("["):
            table = next(iter(_paths(content)))
            yield first, table
        else:
            yield from ((first, table + path) for path in _paths(content))
        pending = ""


def _paths(content: Any) -> Iterator[tuple[str, ...]]:
    """The paths of all leaves and empty tables; the items of a list belong to the list."""
    if isinstance(content, list) and content and isinstance(content[0], dict):
        content = content[0]  # [[an.array.of.tables]]
    if not isinstance(content, dict):
        yield ()
        return
    if not content:
        yield ()
    for key, value in content.items():
        yield from ((key, *rest) for rest in _paths(value))


def _common_length(left: tuple[str, ...], right: tuple[str, ...]) -> int:
    length = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        length += 1
    return length
