"""Two thousand sound requests, 96 at a time: afterwards nothing is left over anywhere."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from simclient import call, chat, copying, eventually

from pytest_pdserve.sim.launch import Simulation, start

REQUESTS = 2_000
AT_ONCE = 96
QUEUES = ("_reqs", "num_used_tokens", "token_usage", "num_requests_", "kv_cache_usage_perc")
"""Parts of the names of gauges that are 0 when nothing is going on."""


def busy(url: str) -> dict[str, float]:
    """The gauges of a worker that are not 0 although they should be."""
    page = call(url, "/metrics").body.decode()
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(page)
        if family.type == "gauge" and any(part in family.name for part in QUEUES)
        for sample in family.samples
        if sample.value
    }


def held(sim: Simulation) -> dict[str, tuple[int, int]]:
    """Open files and sockets, and threads, of every process."""
    return {
        name: (len(list(Path(f"/proc/{pid}/fd").iterdir())), len(list(Path(f"/proc/{pid}/task").iterdir())))
        for name, pid in sim.pids.items()
    }


@pytest.mark.parametrize("dialect", ["sglang", "vllm"])
def test_nothing_is_left_over(dialect: str) -> None:
    with start(dialect=dialect, prefill=2, decode=2, time_scale=0.1) as sim:

        def ask(number: int) -> bool:
            code = str(100_000 + number)
            answer = chat(sim.entry, *copying(code), model=sim.model, stream=number % 2 == 0, timeout_s=60)
            return answer.text == code

        assert all(map(ask, range(8)))
        assert eventually(lambda: not any(busy(url) for url in (*sim.prefill, *sim.decode)))
        before = held(sim)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            assert all(pool.map(ask, range(REQUESTS)))
        assert eventually(lambda: not any(busy(url) for url in (*sim.prefill, *sim.decode)))
        assert eventually(lambda: all(now <= before[name] for name, now in held(sim).items()), 20)
