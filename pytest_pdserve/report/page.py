"""A sheet of text of a given width, in the characters and colours that the reader's terminal has."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pytest_pdserve.report.text import ascii_only, cells, fit, shorten, shorten_middle, visible, wrap

LONGEST: Final = 4000
"""Characters that are looked at of any one text; more are never shown."""
_OURS: Final = str.maketrans({"·": "|", "…": "...", "→": "->", "±": "+/-"})
"""What our own lines are written with, in ASCII."""


class Colour(StrEnum):
    """The few that carry meaning, as parameters of the terminal's SGR sequence."""

    GOOD = "1;32"
    BAD = "1;31"
    UNSURE = "1;33"
    STRONG = "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """How wide in cells, whether more than ASCII can be shown, and whether in colour."""

    width: int
    unicode: bool = True
    colour: bool = False

    @property
    def mark(self) -> str:
        """What stands where something was cut."""
        return "…" if self.unicode else "..."

    def text(self, untrusted: str) -> str:
        """`untrusted` as it can be shown: no line breaks, nothing that steers the terminal, of bounded length."""
        short = shorten(untrusted, LONGEST)
        return visible(short) if self.unicode else ascii_only(short.translate(_OURS))

    def ends(self, untrusted: str, limit: int) -> str:
        """`untrusted` as it can be shown, in at most `limit` characters: what goes is taken from its middle."""
        short = visible(shorten_middle(untrusted, LONGEST))
        return shorten_middle(short if self.unicode else ascii_only(short), limit, mark=f" {self.mark} ")

    def wrap(self, text: str, *, lines: int, indent: int = 0, head: str | None = None) -> list[str]:
        """`text` in at most `lines` lines, set in by `indent` cells, the first by `head` where there is one.

        `head` takes at most `indent` cells. An empty text is no line.
        """
        room = self.width - indent
        if room < 1:
            return [self.fit((head or "") + text)]
        margin = " " * indent
        wrapped = wrap(text, room, lines, mark=self.mark)
        return [(head if head and not place else margin) + line for place, line in enumerate(wrapped)]

    def fit(self, line: str) -> str:
        """`line`, cut where it is wider than the page."""
        return fit(line, self.width, mark=self.mark)

    def sides(self, left: str, right: str) -> str | None:
        """`left`, and `right` at the right edge; None where they don't fit on one line."""
        gap = self.width - cells(left) - cells(right)
        return f"{left}{' ' * gap}{right}" if gap >= 2 else None

    def paint(self, line: str, part: str, colour: Colour) -> str:
        """`line` with the first `part` in colour. For lines that are laid out already."""
        return line.replace(part, f"\x1b[{colour}m{part}\x1b[0m", 1) if self.colour else line
