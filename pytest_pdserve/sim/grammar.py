"""What a request demands of an answer's form, and JSON that obeys a schema.

As in real engines the form is imposed on the decoder by the request; the values come from the context, that is,
from the KV.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_DEEPEST = 32
_VALUE = r"""("(?:[^"\\]|\\.)*"|'[^']*'|-?\d+(?:\.\d+)?\b|[^\s,;.]+)"""
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_TRUE = frozenset({"true", "yes", "on"})


@dataclass(frozen=True, slots=True)
class Guide:
    """The form that was asked for."""

    schema: Mapping[str, Any] | None = None
    """The JSON schema that the text has to obey."""
    must_call: bool = False
    may_call: bool = True
    only: str | None = None
    """The one tool that may be called."""
    parallel: bool = True


FREE = Guide()


def fit(schema: Mapping[str, Any], text: str) -> Any:
    """A value that obeys `schema`, with what `text` states (`name: value`) where it fits.

    A JSON object that stands in the text and has every required key is taken as it is.
    """
    for literal in literals(text):
        if schema.get("type") == "object" and set(schema.get("required", ())) <= literal.keys() and literal:
            return literal
    return _Fitting(schema, text).value(schema, "", 0)


def check(schema: Mapping[str, Any]) -> None:
    """Refuse a schema that `fit` can't obey. Raises ValueError."""
    try:
        fit(schema, "")
    except (LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not a schema that can be obeyed: {error}") from None


def literals(text: str, start: int = 0) -> Iterator[dict[str, Any]]:
    """The JSON objects that stand in a text, from `start` on."""
    decoder = json.JSONDecoder()
    at = text.find("{", start)
    while at >= 0:
        try:
            found, end = decoder.raw_decode(text, at)
        except ValueError:
            end = at + 1
        else:
            if isinstance(found, dict):
                yield found
        at = text.find("{", end)


class _Fitting:
    """One schema and the text whose statements fill it."""

    def __init__(self, root: Mapping[str, Any], text: str) -> None:
        self._root = root
        self._text = text

    def value(self, schema: Mapping[str, Any], name: str, depth: int) -> Any:
        schema = self._resolved(schema)
        if "const" in schema:
            return schema["const"]
        if choices := schema.get("enum"):
            return self._chosen(choices, name)
        kind = schema.get("type")
        if isinstance(kind, list):
            kind = kind[0]
        if depth > _DEEPEST:
            return None
        if kind == "object" or (kind is None and "properties" in schema):
            properties = schema.get("properties", {})
            return {key: self.value(inner, key, depth + 1) for key, inner in properties.items()}
        if kind == "array":
            return self._items(schema, name, depth)
        return self._scalar(kind, schema, name)

    def _resolved(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        for _ in range(_DEEPEST):
            if "$ref" in schema:
                target: Any = self._root
                for step in filter(None, str(schema["$ref"]).removeprefix("#").split("/")):
                    target = target[step]
                schema = target
            elif options := schema.get("anyOf") or schema.get("oneOf"):
                schema = options[0]
            elif parts := schema.get("allOf"):
                merged: dict[str, Any] = {}
                for part in parts:
                    merged |= part
                schema = merged
            else:
                break
        return schema

    def _stated(self, name: str) -> str | None:
        """What the text says of a name, unquoted."""
        if not name:
            return None
        words = re.escape(name).replace("_", "[ _]")
        match = re.search(rf"(?i)(?<!\w)[\"']?{words}[\"']?\s*(?:is|=|:|to)\s*{_VALUE}", self._text)
        return match[1].strip("\"'") if match else None

    def _chosen(self, choices: list[Any], name: str) -> Any:
        stated = self._stated(name)
        said = [
            choice for choice in choices if re.search(rf"(?<!\w){re.escape(str(choice))}(?!\w)", self._text)
        ]
        return next((choice for choice in choices if str(choice) == stated), said[0] if said else choices[0])

    def _items(self, schema: Mapping[str, Any], name: str, depth: int) -> list[Any]:
        inner = schema.get("items", {"type": "string"})
        least, most = int(schema.get("minItems", 0)), schema.get("maxItems")
        match = (
            re.search(rf"(?i)(?<!\w){re.escape(name)}\s*(?:are|is|=|:)\s*([^.;\n]+)", self._text)
            if name
            else None
        )
        kind = self._resolved(inner).get("type")
        items: list[Any] = []
        if match and kind in ("string", "integer", "number"):
            parts = [part.strip(" \"'[]") for part in re.split(r",|\band\b", match[1])]
            items = [_Fitting(inner, f"x: {part}").value(inner, "x", depth) for part in parts if part]
        items = items[: int(most)] if most is not None else items
        wanted = max(least, 1) if most != 0 and not items else least
        while len(items) < wanted:
            items.append(self.value(inner, "", depth + 1))
        return items

    def _scalar(self, kind: str | None, schema: Mapping[str, Any], name: str) -> Any:
        stated = self._stated(name)
        match kind:
            case "integer" | "number":
                found = stated if stated and _NUMBER.fullmatch(stated) else None
                number = float(found) if found else float(schema.get("minimum", 0))
                number = min(number, float(schema.get("maximum", number)))
                return int(number) if kind == "integer" or number.is_integer() else number
            case "boolean":
                return (stated or "").lower() in _TRUE
            case "null":
                return None
        quoted = _QUOTED.search(self._text)
        said = stated if stated is not None else quoted[1] if quoted else name or "value"
        said = said.ljust(int(schema.get("minLength", 0)), "x")
        return said[: int(schema.get("maxLength", len(said)))]
