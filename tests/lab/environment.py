"""A lane's own Python environment: made once, made anew when what is pinned changes."""

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.lab.logs import tail
from tests.lab.processes import Leashed

STEP_LIMIT = 1800.0
"""Seconds that one step of a set-up may take (the largest downloads about 3 GB)."""


class SetupError(Exception):
    """A step of the set-up failed or took too long; the text ends with the last lines of its log."""


Step = tuple[str, ...]
"""One command of a set-up; it is run in the environment's folder."""


def python(folder: Path) -> Path:
    """Return the environment's interpreter."""
    return folder / "venv" / "bin" / "python"


def venv(folder: Path) -> Step:
    """Return the step that makes the environment, for the Python that runs this."""
    return (sys.executable, "-m", "venv", str(folder / "venv"))


def pip(folder: Path, *arguments: str) -> Step:
    """Return a step that runs the environment's own pip."""
    return (str(python(folder)), "-m", "pip", "--disable-pip-version-check", *arguments)


def prepare(folder: Path, pins: Sequence[str], steps: Sequence[Step], environ: Mapping[str, str]) -> bool:
    """Make the environment in `folder` unless its stamp names the same pins, and say whether it was made.

    `pins` is everything that decides what the environment contains. A set-up that was cut short leaves no
    stamp, so the next one starts from nothing. Raises SetupError.
    """
    stamp = folder / "stamp"
    wanted = "\n".join([f"python {sys.version.split()[0]}", *pins, ""])
    if stamp.exists() and stamp.read_text() == wanted:
        return False
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    log = folder / "setup.log"
    print(f"lab: setting up {folder}: downloads packages, takes minutes; log: {log}", flush=True)
    for step in steps:
        _run(step, folder, log, environ)
    stamp.write_text(wanted)
    return True


def _run(step: Step, folder: Path, log: Path, environ: Mapping[str, str]) -> None:
    shown = " ".join(step)
    with log.open("ab") as out:
        out.write(f"$ {shown}\n".encode())
        out.flush()
        process = Leashed(step, environ, folder, out)
        try:
            status = process.wait(STEP_LIMIT)
        except subprocess.TimeoutExpired as late:
            raise SetupError(f"still not done after {STEP_LIMIT:.0f} s: {shown}\n{tail(log)}") from late
        finally:
            process.end()
    if status:
        raise SetupError(f"failed with status {status}: {shown}\n{tail(log)}")
