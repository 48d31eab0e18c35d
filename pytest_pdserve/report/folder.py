"""Where a run's files lie: `reports/<target>/<UTC time>/`, and `latest` beside it."""

from __future__ import annotations

import os
import secrets
from datetime import UTC
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

LATEST: Final = "latest"
MOST_IN_ONE_SECOND: Final = 1000


def new_run_folder(reports: Path, target: str, now: datetime) -> Path:
    """Make `<reports>/<target>/<YYYYMMDDTHHMMSSZ>/`, with `-2`, `-3` … for further runs of the same second.

    `target` is a name fit for a folder, `now` carries its time zone. The folder is this caller's alone, also
    among processes. Raises OSError when it can't be made, ValueError for a name that leads elsewhere.
    """
    if not target or target in {".", ".."} or "/" in target or "\\" in target or "\0" in target:
        raise ValueError(f"not a name for a folder: {target!r}")
    stamp = now.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    parent = reports / target
    parent.mkdir(parents=True, exist_ok=True)
    for number in range(1, MOST_IN_ONE_SECOND + 1):
        folder = parent / (stamp if number == 1 else f"{stamp}-{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise FileExistsError(f"{parent}: more than {MOST_IN_ONE_SECOND} runs in one second")


def point_latest(folder: Path) -> Path:
    """Let `latest` beside `folder` point at it, and return that link's path.

    Whoever follows it meanwhile finds the old run or the new one, never nothing. Of several runs the last to
    call wins. Raises OSError where symbolic links are not allowed or `latest` is something else.
    """
    latest = folder.parent / LATEST
    if latest.exists() and not latest.is_symlink():
        raise FileExistsError(f"{latest} is not a link that a run has left")
    made = folder.parent / f".{LATEST}-{secrets.token_hex(8)}"
    try:
        made.symlink_to(folder.name, target_is_directory=True)
        os.replace(made, latest)
    finally:
        made.unlink(missing_ok=True)
    return latest
