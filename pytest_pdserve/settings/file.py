"""Finding and reading pdserve.toml, and saying in one line what is wrong with it."""

import difflib
import os
import re
import stat
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ValidationError

from pytest_pdserve.settings.lines import line_of
from pytest_pdserve.settings.tables import File, TargetTable

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

FILE_NAME = "pdserve.toml"
MAX_BYTES = 256 * 1024


class SettingsError(ValueError):
    """One line for people: what is wrong with the target or the file, where, and what is allowed."""

    def __init__(self, line: str) -> None:
        super().__init__(one_line(line))


def one_line(text: str) -> str:
    """The text with everything that is not printable shown as an escape."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """` Did you mean "…"?` for the nearest known word, else nothing."""
    near = difflib.get_close_matches(word, known, n=1)
    return f' Did you mean "{near[0]}"?' if near else ""


def find(folder: Path) -> Path | None:
    """The pdserve.toml of `folder` or of the nearest folder above it."""
    folder = folder.absolute()
    paths = (above / FILE_NAME for above in (folder, *folder.parents))
    return next((path for path in paths if os.path.exists(path)), None)


def read(path: Path) -> File:
    """Read and check the file. Raises SettingsError."""
    text = _text(path)
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(_syntax(path, text, error)) from None
    except RecursionError:
        raise SettingsError(f"{path}: values are nested too deeply") from None
    try:
        return File.model_validate(content)
    except ValidationError as error:
        problems = error.errors(include_input=False, include_url=False)
    raise SettingsError(_first(path, text, problems))


def _text(path: Path) -> str:
    if "\0" in str(path):
        raise SettingsError("the settings file's path contains a NUL character")
    try:
        regular = stat.S_ISREG(path.stat().st_mode)
        data = _head(path) if regular else b""
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read ({(error.strerror or 'error').lower()})") from None
    if not regular:
        raise SettingsError(f"{path}: is not a regular file")
    if len(data) > MAX_BYTES:
        raise SettingsError(f"{path}: is larger than 256 KiB")
    try:
        return data.decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SettingsError(f"{path}:{line}: is not UTF-8 text (byte {error.start})") from None


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_BYTES + 1)


def _syntax(path: Path, text: str, error: tomllib.TOMLDecodeError) -> str:
    problem = str(error)
    where = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)$", problem)
    if where is None:
        return f"{path}: {problem}"
    line, column = where.groups()
    if line is None:
        lines = text.split("\n")
        line, column = str(len(lines)), str(len(lines[-1]) + 1)
    return f"{path}:{line}:{column}: not valid TOML: {problem[: where.start()]}"


def _first(path: Path, text: str, problems: list["ErrorDetails"]) -> str:
    """The problem that comes first in the file, and how many there are beside it."""
    placed = [(_line(text, problem), _explain(problem)) for problem in problems]
    line, explanation = min(placed, key=lambda pair: pair[0] or 0)
    more = f" (and {len(placed) - 1} more)" if len(placed) > 1 else ""
    return f"{path}{f':{line}' if line else ''}: {explanation}{more}"


def _line(text: str, problem: "ErrorDetails") -> int | None:
    return line_of(text, tuple(str(part) for part in problem["loc"]))


def _explain(problem: "ErrorDetails") -> str:
    *above, last = (str(part) for part in problem["loc"]) if problem["loc"] else ("",)
    table = _table_name(above)
    match problem["type"]:
        case "extra_forbidden":
            known = list(_model(above).model_fields)
            allowed = ", ".join(known) if above else "tables [targets.NAME]"
            return f'unknown key "{last}" in {table} (allowed: {allowed}).{did_you_mean(last, known)}'
        case "missing":
            return f'{table} lacks "{last}" ({_model(above).model_fields[last].description})'
        case "value_error":
            saying, meaning = str(problem["ctx"]["error"]), ""
        case kind:
            saying = _SAYINGS.get(kind) or re.sub("^(Input|String) should", "should", problem["msg"])
            field = _model(above).model_fields.get(last)
            meaning = f" ({field.description})" if field is not None else ""
    if last == "[key]":
        return f'target name "{above[-1]}" {saying}'
    if isinstance(problem["loc"][-1], int):
        return f"{_table_name(above[:-1])} {above[-1]}, number {int(last) + 1}, {saying}"
    if _is_table(above, last):
        return f"{_table_name([*above, last])} {saying}"
    return f"{table} {last} {saying}{meaning}"


_SAYINGS = {
    "bool_type": "should be true or false",
    "dict_type": "should be a table",
    "float_type": "should be a number",
    "int_type": "should be a whole number",
    "list_type": 'should be a list, ["…"]',
    "model_type": "should be a table",
    "string_type": 'should be a text in quotes, "…"',
}
"""What is allowed, where the library's own words speak of Python's types."""


def _is_table(above: list[str], last: str) -> bool:
    return len(above) <= 1 or (len(above) == 2 and last in ("headers", "tls", "budgets", "limits"))


def _table_name(parts: list[str]) -> str:
    return f"[{'.'.join(parts)}]" if parts else "the file"


def _model(parts: list[str]) -> type[BaseModel]:
    """The model of the table at this path."""
    if len(parts) < 2:
        return File
    if len(parts) == 2:
        return TargetTable
    annotation = TargetTable.model_fields[parts[2]].annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else TargetTable
