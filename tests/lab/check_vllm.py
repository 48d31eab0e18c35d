"""The bundled suites against real vLLM: sound, with decode's worker process stopped, and sound again."""

import json
import os
import re
import signal
import urllib.request
from collections.abc import Iterator

import pytest

from tests.lab import folders
from tests.lab.conftest import RUN_LIMIT, Accept
from tests.lab.processes import descendants
from tests.lab.vllm_lane import PORTS

pytestmark = pytest.mark.timeout(2 * RUN_LIMIT)

TARGET = f"""
entry = "http://127.0.0.1:{PORTS["router"]}"
engine = "vllm"
prefill = ["http://127.0.0.1:{PORTS["prefill"]}"]
decode = ["http://127.0.0.1:{PORTS["decode"]}"]
"""


@pytest.fixture
def stopped_decode_worker() -> Iterator[int]:
    """Stop the process that computes for decode (not the one that answers HTTP) until the test ends."""
    services = json.loads((folders.build("vllm") / "deployment.json").read_text())
    (worker,) = (
        pid for pid, name in descendants(services["decode"]["pid"]) if name.startswith("VLLM::Worker")
    )
    os.kill(worker, signal.SIGSTOP)
    try:
        yield worker
    finally:
        os.kill(worker, signal.SIGCONT)


def prompt_tokens(source: str) -> float:
    """Return how many prompt tokens decode has taken from `source` since its start."""
    with urllib.request.urlopen(f"http://127.0.0.1:{PORTS['decode']}/metrics", timeout=10) as metrics:
        text = metrics.read().decode()
    (value,) = re.findall(
        rf'^vllm:prompt_tokens_by_source_total{{.*source="{source}".*}} (\S+)$', text, re.MULTILINE
    )
    return float(value)


def test_sound_deployment_is_accepted(accept: Accept) -> None:
    run = accept(TARGET)

    assert run.status == 0
    assert run.verdict == "ACCEPTED"
    assert re.search(r"^ ACCEPTED +lab in ", run.output, re.MULTILINE)
    copying = [probe["outcome"] for probe in run.record["probes"] if "copy" in probe["needs"]]
    assert set(copying) == {"passed"}
    # what was accepted is a prefill-decode deployment: no prompt was computed where it was answered
    assert prompt_tokens("external_kv_transfer") > 0
    assert prompt_tokens("local_compute") == 0


def test_stopped_decode_worker_is_found(accept: Accept, stopped_decode_worker: int) -> None:
    run = accept(TARGET)
    with urllib.request.urlopen(f"http://127.0.0.1:{PORTS['decode']}/health", timeout=10) as health:
        assert health.status == 200

    assert run.status == 1
    assert run.verdict == "REJECTED"
    hangs = [finding for probe in run.probes("hung") for finding in probe["findings"]]
    assert any(re.search(r"headers after \d+\.\d s, then nothing for \d+\.\d s", str(hang)) for hang in hangs)
    # asked directly, prefill alone answers and decode alone doesn't
    assert [(hang["layer"], hang["sureness"]) for hang in hangs] == [("decode", "shown")]
    # nothing else was waited for: every probe has an outcome, and what needs no answer passed
    collected = re.search(r"^collected (\d+) items", run.output, re.MULTILINE)
    assert collected
    assert len(run.record["probes"]) == int(collected[1])
    assert any("test_service_answers[decode]" in probe["id"] for probe in run.probes("passed"))


def test_deployment_is_accepted_again_once_the_worker_goes_on(accept: Accept) -> None:
    run = accept(TARGET)

    assert run.status == 0
    assert run.verdict == "ACCEPTED"
