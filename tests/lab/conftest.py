"""What a lane's checks need: the deployment that is up, and runs of the bundled suites against it.

The checks (check_*.py) are collected only when they are named, as the lanes do (`python -m tests.lab LANE run`).
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

RUN_LIMIT = 900.0
"""Seconds within which any run must end, also one against a deployment that hangs."""


@dataclass(frozen=True, slots=True)
class Run:
    """One finished `pytest --pd-target=lab`."""

    status: int
    output: str
    record: dict[str, Any]

    @property
    def verdict(self) -> str:
        """The run's verdict, from its record."""
        return str(self.record["verdict"]["outcome"])

    def probes(self, outcome: str) -> list[dict[str, Any]]:
        """Return the recorded probes that ended with `outcome`."""
        return [probe for probe in self.record["probes"] if probe["outcome"] == outcome]


Accept = Callable[[str], Run]


@pytest.fixture
def accept(tmp_path: Path) -> Accept:
    """Run the bundled suites as a user would: from a folder with a pdserve.toml, given its target's table."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "PDSERVE_"))}

    def run(table: str) -> Run:
        (tmp_path / "pytest.ini").write_text(
            "[pytest]\n"
        )  # or the checkout's settings would be found upwards
        (tmp_path / "pdserve.toml").write_text(f"[targets.lab]\n{table}")
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "--pd-target=lab"],
            cwd=tmp_path,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=RUN_LIMIT,
        )
        # pytest shows it when the check fails, and with -s or -rP always
        print(done.stdout)
        record = tmp_path / "reports" / "lab" / "latest" / "record.json"
        return Run(done.returncode, done.stdout, json.loads(record.read_text()))

    return run
