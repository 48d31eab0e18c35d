"""Tool calls: when the toy model makes them, how it writes them, and how engines read them back.

They are written as `<tool_call>\\n{"name": ..., "arguments": ...}\\n</tool_call>`, the form that vLLM's truncated
answer shows; a parser between engine and client turns that into tool calls.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from pytest_pdserve.sim.grammar import Guide, fit, literals

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OPEN = '<tool_call>\n{"name": "'
MIDDLE = '", "arguments": '
CLOSE = "}\n</tool_call>"
_NEAR = 60
"""Characters between a tool's name and its arguments, where a text gives them literally."""
_WORD = re.compile(r"[a-z0-9]+")
_VERBS = frozenset("get set find list call run look up do make the a an of for to in and with".split())  # noqa: SIM905
_REFUSED = re.compile(r"(?i)\b(?:not|n't|without|never)\b[^.!?\n]{0,40}$")
_LISTED = re.compile(r"(?i)\b(?:for|of|in|each)\b:?\s+([^.?!\n]+)")


def written(name: str, arguments: str) -> str:
    """A call as the model writes it; `arguments` is JSON text."""
    return f"{OPEN}{name}{MIDDLE}{arguments}{CLOSE}"


def decide(tools: Sequence[Mapping[str, Any]], role: str, asked: str, guide: Guide) -> list[str]:
    """The calls, written, that the toy model makes after a message of `role`; none when it doesn't call.

    It calls a tool whose arguments the message gives literally after its name, or one that the user's words are
    about; when it must call and nothing of that helps, the first one.
    """
    offered = [tool for tool in tools if guide.only in (None, tool.get("name"))]
    if not offered or not guide.may_call:
        return []
    calls = _literal(offered, asked)
    if not calls and role == "user":
        calls = [call for tool in offered if _about(tool, asked) for call in _filled(tool, asked)]
    if not calls and guide.must_call:
        calls = _filled(offered[0], asked)[:1]
    return [
        written(name, json.dumps(arguments, ensure_ascii=False))
        for name, arguments in (calls if guide.parallel else calls[:1])
    ]


def _literal(tools: Sequence[Mapping[str, Any]], asked: str) -> list[tuple[str, Any]]:
    found = []
    for tool in tools:
        name = str(tool.get("name"))
        for match in re.finditer(rf"(?<!\w){re.escape(name)}(?!\w)", asked):
            brace = asked.find("{", match.end(), match.end() + _NEAR)
            if brace < 0 or _REFUSED.search(asked[: match.start()]):
                continue
            arguments = next(literals(asked, brace), None)
            if arguments is not None:
                found.append((match.start(), name, arguments))
    return [(name, arguments) for _, name, arguments in sorted(found, key=lambda each: each[0])]


def _about(tool: Mapping[str, Any], asked: str) -> bool:
    """Whether the words of a message are about a tool."""
    name = str(tool.get("name"))
    mention = re.search(rf"(?<!\w){re.escape(name)}(?!\w)", asked)
    if mention:
        return not _REFUSED.search(asked[: mention.start()])
    words = set(_WORD.findall(asked.lower()))
    named = set(_WORD.findall(name.lower().replace("_", " "))) - _VERBS
    described = set(_WORD.findall(str(tool.get("description") or "").lower())) - _VERBS
    by_name = bool(named) and named <= words
    return by_name or (len(described & words) >= 2 and len(described & words) * 2 >= len(described))


def _filled(tool: Mapping[str, Any], asked: str) -> list[tuple[str, Any]]:
    """Calls with arguments from the message: several where one string is wanted and several are listed."""
    name, schema = str(tool.get("name")), tool.get("parameters") or {"type": "object"}
    properties = schema.get("properties", {})
    arguments = fit(schema, asked)
    wanted = [
        key for key in schema.get("required", properties) if properties.get(key, {}).get("type") == "string"
    ]
    listed = _LISTED.search(asked)
    free = [key for key in wanted if arguments.get(key) in (key, "value") and "enum" not in properties[key]]
    if not free or not listed:
        return [(name, arguments)]
    parts = [part.strip(" \"'") for part in re.split(r",|\band\b", listed[1])]
    return [(name, {**arguments, free[0]: part}) for part in parts if part]


@dataclass(frozen=True, slots=True)
class CallPart:
    """A piece of one call: its name when it begins, afterwards pieces of its arguments."""

    index: int
    name: str | None
    arguments: str


class _State(Enum):
    TEXT = auto()
    NAME = auto()
    ARGUMENTS = auto()


_AWAITED = {_State.TEXT: OPEN, _State.NAME: MIDDLE, _State.ARGUMENTS: CLOSE}


class ToolReader:
    """Tells text and tool calls apart as an answer comes, piece by piece."""

    def __init__(self) -> None:
        self._held = ""
        self._state = _State.TEXT
        self.calls = 0
        """How many calls have begun."""

    @property
    def inside(self) -> bool:
        """Whether a call has begun and not ended."""
        return self._state is not _State.TEXT

    def feed(self, piece: str) -> tuple[str, list[CallPart]]:
        """Take a piece; returns the text and the parts of calls that are certain now."""
        self._held += piece
        text, parts = "", []
        while True:
            before, mark, rest = self._held.partition(_AWAITED[self._state])
            if not mark:
                before, self._held = self._certain()
            else:
                self._held = rest
            if self._state is _State.TEXT:
                text += before if not self.calls else before.strip("\n")
            elif self._state is _State.ARGUMENTS and before:
                parts.append(CallPart(self.calls - 1, None, before))
            elif self._state is _State.NAME and mark:
                self.calls += 1
                parts.append(CallPart(self.calls - 1, before, ""))
            if not mark:
                return text, parts
            self._state = {
                _State.TEXT: _State.NAME,
                _State.NAME: _State.ARGUMENTS,
                _State.ARGUMENTS: _State.TEXT,
            }[self._state]

    def finish(self) -> tuple[str, list[CallPart]]:
        """What is still held back when the answer has ended."""
        held, self._held = self._held, ""
        if self._state is _State.ARGUMENTS and held:
            return "", [CallPart(self.calls - 1, None, held)]
        return (held if self._state is _State.TEXT and not self.calls else ""), []

    def _certain(self) -> tuple[str, str]:
        """What can't be the beginning of the awaited mark, and the rest."""
        if self._state is _State.NAME:
            return "", self._held
        mark = _AWAITED[self._state]
        for length in range(min(len(mark) - 1, len(self._held)), 0, -1):
            if mark.startswith(self._held[-length:]):
                return self._held[:-length], self._held[-length:]
        return self._held, ""
