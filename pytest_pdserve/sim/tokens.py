"""Tokens of the toy model: short byte pieces, cut by one fixed rule.

As with byte-level BPE, a word is one or several tokens and a multi-byte character may be split over two of
them, so whoever turns tokens into text must hold back the bytes of an unfinished character.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pytest_pdserve.sim.tools import written

_PIECE = re.compile(rb" ?[A-Za-z]{1,4}| ?[0-9]{1,3}|[\x80-\xff]{1,2}|\n+|[^\x80-\xff]")

EOS = b"\x00eos"
"""The token a model ends its answer with: it has no text but counts as a completion token."""
EOS_ID = 2
"""What engines report as `matched_stop` when the model itself ended its answer."""

_ROLE_MARKS = {role: b"\x00" + role.encode() for role in ("tools", "system", "user", "assistant", "tool")}
_MARK_ROLES = {mark: role for role, mark in _ROLE_MARKS.items()}


def cut(text: str) -> list[bytes]:
    """Cut text into tokens; joined, they are the text's UTF-8 bytes again."""
    return _PIECE.findall(text.encode("utf-8", "surrogatepass"))


def content_text(content: Any) -> str:
    """The text of a message's content: a string, a list of text parts, or nothing."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return ""


def render(messages: Iterable[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> list[bytes]:
    """Render a conversation to prompt tokens: each message opened by its role's mark and closed by EOS.

    The tools that are offered stand before it. Ends with the assistant's mark, where the model goes on.
    """
    pieces: list[bytes] = []
    if tools:
        pieces += [_ROLE_MARKS["tools"], *cut(json.dumps(list(tools), ensure_ascii=False)), EOS]
    for message in messages:
        pieces.append(_ROLE_MARKS.get(str(message.get("role")), _ROLE_MARKS["user"]))
        pieces.extend(cut(content_text(message.get("content"))))
        pieces.extend(cut(_calls_text(message.get("tool_calls"))))
        pieces.append(EOS)
    pieces.append(_ROLE_MARKS["assistant"])
    return pieces


def _calls_text(calls: Any) -> str:
    """The tool calls of an assistant's message, as they stand in a prompt."""
    functions = [call.get("function") or {} for call in calls or () if isinstance(call, Mapping)]
    return "\n".join(written(str(each.get("name")), str(each.get("arguments"))) for each in functions)


def turns(pieces: Sequence[bytes]) -> list[tuple[str, str]]:
    """Read prompt tokens back as (role, text) turns; text before any role's mark has the role ""."""
    found: list[tuple[str, list[bytes]]] = [("", [])]
    for piece in pieces:
        if piece in _MARK_ROLES:
            found.append((_MARK_ROLES[piece], []))
        elif piece != EOS:
            found[-1][1].append(piece)
    return [(role, b"".join(parts).decode("utf-8", "replace")) for role, parts in found if role or parts]


def forget_turns(pieces: Sequence[bytes], kept: int) -> list[bytes]:
    """The prompt without what comes after its first `kept` user messages; the assistant goes on from there."""
    users = [at for at, piece in enumerate(pieces) if piece == _ROLE_MARKS["user"]]
    if len(users) <= kept:
        return list(pieces)
    return [*pieces[: users[kept]], _ROLE_MARKS["assistant"]]


def count_turns(pieces: Sequence[bytes]) -> int:
    """How many user messages a prompt holds; 1 for plain text."""
    return max(1, pieces.count(_ROLE_MARKS["user"]))


class Detokenizer:
    """Turns tokens into text as engines do: whole characters only, and never the text of a stop string.

    `feed` returns the text that may be shown now (possibly none). Text that may be the beginning of a stop
    string is held back until it is decided.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.matched: str | None = None

    def feed(self, piece: bytes) -> str:
        """Take one token; afterwards `matched` is the stop string that ended the answer, if one did."""
        return self._show(self._decoder.decode(piece if piece != EOS else b""), final=False)

    def finish(self) -> str:
        """The text still held back when the answer ends for another reason than a stop string."""
        return self._show(self._decoder.decode(b"", True), final=True)

    def _show(self, text: str, *, final: bool) -> str:
        self._held += text
        hits = [(at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if hits:
            at, self.matched = min(hits)
            shown, self._held = self._held[:at], ""
            return shown
        keep = 0 if final else self._undecided()
        cut_at = len(self._held) - keep
        shown, self._held = self._held[:cut_at], self._held[cut_at:]
        return shown

    def _undecided(self) -> int:
        """How many characters at the end of the held text could begin a stop string."""
        longest = max(map(len, self._stops), default=1) - 1
        for length in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-length:]) for stop in self._stops):
                return length
        return 0
