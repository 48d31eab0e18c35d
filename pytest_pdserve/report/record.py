"""Everything that one run measured, as a file."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from pytest_pdserve.judge import ProbeRecord, Verdict
from pytest_pdserve.target.target import Target

SCHEMA: Final = 1
FILE_NAME: Final = "record.json"


class RecordError(ValueError):
    """One line for people: why a file is no record that this version can read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One run against one target, secrets excluded. Times in seconds."""

    schema: int = SCHEMA
    """The version of this shape; it grows when a reader of the older one would misread the newer."""
    tool_version: str
    target: Target
    verdict: Verdict
    started: str
    """UTC, ISO 8601."""
    duration: float
    depth: str
    """How much was asked for, such as `standard`."""
    plan: str
    """The one line of what the run sends at most."""
    selection: str = ""
    """Which part of the probes the user picked, such as `12 of 30 probes`; empty for all."""
    waited: tuple[str, ...] = ()
    """What became ready when, before anything was probed; empty when nothing was waited for."""
    incomplete: str | None = None
    """Why the run ended early; None when it didn't."""
    client_lag: float = 0.0
    """The longest that our own event loop was late, anywhere in the run."""
    probes: tuple[ProbeRecord, ...]


def write_record(folder: Path, record: RunRecord) -> Path:
    """Write `record` to the folder's record.json, whole or not at all, and return its path.

    Lone surrogates, which no encoding has, are written as the text `\\udXXX`. Raises OSError when the disk
    is full or the folder can't be written; a file that was there before is then still what it was.
    """
    path = folder / FILE_NAME
    part = folder / f".{FILE_NAME}.{os.getpid()}"
    content = msgspec.json.format(msgspec.json.encode(_encodable(msgspec.to_builtins(record))), indent=1)
    try:
        with part.open("wb") as file:
            file.write(content + b"\n")
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path


def read_record(path: Path) -> RunRecord:
    """The record in the file `path`. Raises OSError, or RecordError when it is not one or a newer one."""
    try:
        data = msgspec.json.decode(path.read_bytes())
        schema = data.get("schema") if isinstance(data, dict) else None
        if schema != SCHEMA:
            raise RecordError(f"{path}: no record of schema {SCHEMA} (schema: {schema!r})")
        return msgspec.convert(data, RunRecord)
    except msgspec.MsgspecError as error:
        raise RecordError(f"{path}: not a record: {error}") from None


def _encodable(data: Any) -> Any:
    if isinstance(data, str):
        return data if data.isascii() else data.encode("utf-8", "backslashreplace").decode()
    if isinstance(data, dict):
        return {_encodable(key): _encodable(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_encodable(item) for item in data]
    return data
