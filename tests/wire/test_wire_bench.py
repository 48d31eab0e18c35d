from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_tiny_benchmark_measures_every_client() -> None:
    options = ["--rounds", "1", "--streams", "3", "--seconds", "0.2"]
    done = subprocess.run(
        [sys.executable, "-m", "bench", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert done.stderr == ""
    assert lines[0] == "$ python -m bench " + " ".join(options)
    assert max(map(len, lines)) <= 80
    rows = {line[:14].strip(): line[14:].split() for line in lines[6:10]}
    assert list(rows) == ["bare protocol", "ours", "aiohttp", "stock httpx"]
    for cpu, of_bare, _of_stock, p50, p99 in rows.values():
        assert float(cpu) > 0
        assert float(of_bare) > 0
        assert 0 <= float(p50) <= float(p99)
    assert rows["bare protocol"][1] == rows["stock httpx"][2] == "1.00"
