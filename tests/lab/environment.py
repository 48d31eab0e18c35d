"""A lane's own Python environment: made once, made anew when what is pinned changes."""

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.lab.logs import tail

STEP_LIMIT = 1800.0
"""Seconds that one step of a set-up may take (the largest downloads about 3 GB)."""


class SetupError(Exception):
    """A step of the set-up failed or took too long; the text ends with the last lines of its log."""


@dataclass(frozen=True, slots=True)
class Step:
    """One command of a set-up, run in the environment's folder; a step that is `optional` may fail."""

    command: tuple[str, ...]
    optional: bool = False


def python(folder: Path) -> Path:
    """Return the environment's interpreter."""
    return folder / "venv" / "bin" / "python"


def pip(folder: Path, *arguments: str, optional: bool = False) -> Step:
    """Return a step that runs the environment's own pip."""
    return Step((str(python(folder)), "-m", "pip", "--disable-pip-version-check", *arguments), optional)


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
    for step in (Step((sys.executable, "-m", "venv", str(folder / "venv"))), *steps):
        _run(step, folder, log, environ)
    stamp.write_text(wanted)
    return True


def _run(step: Step, folder: Path, log: Path, environ: Mapping[str, str]) -> None:
    shown = " ".join(step.command)
    with log.open("a") as out:
        print(f"$ {shown}", file=out, flush=True)
        try:
            done = subprocess.run(
                step.command,
                cwd=folder,
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                timeout=STEP_LIMIT,
            )
        except subprocess.TimeoutExpired as late:
            raise SetupError(f"still not done after {STEP_LIMIT:.0f} s: {shown}\n{tail(log)}") from late
    if done.returncode and not step.optional:
        raise SetupError(f"failed with status {done.returncode}: {shown}\n{tail(log)}")
