"""Runs of pytest with the plugin, each in a process of its own, as a user starts them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_pdserve.sim.launch import start

BOUND = 100.0


@dataclass(frozen=True)
class Ran:
    """What a run printed and left."""

    code: int
    out: str
    folder: Path

    @property
    def record(self) -> dict[str, Any]:
        found = sorted(self.folder.glob("reports/*/latest/record.json"))
        assert len(found) == 1, f"no single record in {self.folder}:\n{self.out}"
        return json.loads(found[0].read_text())

    @property
    def verdict(self) -> str:
        return self.record["verdict"]["outcome"]

    def outcomes(self) -> dict[str, str]:
        """Probe name (without its file) -> outcome."""
        return {probe["id"].split("::")[-1]: probe["outcome"] for probe in self.record["probes"]}


class Runner:
    """Starts pytest in an empty folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    readme = Path(__file__).parents[2] / "README.md"

    def left(self, code: int, out: str) -> Ran:
        return Ran(code, re.sub(r"\x1b\[[0-9;]*m", "", out), self.folder)

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        return path

    def command(self, *args: str) -> list[str]:
        return [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *args]

    def environ(self, **more: str) -> dict[str, str]:
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("PDSERVE", "PYTEST"))
        }
        return {**kept, "COLUMNS": "80", **more}

    def __call__(self, *args: str, **environ: str) -> Ran:
        done = subprocess.run(
            self.command(*args),
            cwd=self.folder,
            env=self.environ(**environ),
            capture_output=True,
            text=True,
            timeout=BOUND,
            check=False,
        )
        return self.left(done.returncode, done.stdout + done.stderr)


@pytest.fixture
def run(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


@pytest.fixture(scope="session")
def sound_sim():
    """A sound simulation that several runs may share."""
    with start(seed=7) as simulation:
        yield simulation
