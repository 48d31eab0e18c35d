"""The simulated workers' metrics beside those of real ones, family by family, and that they move."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families
from simclient import call, chat, copying, eventually

from pytest_pdserve.sim.histograms import Distribution
from pytest_pdserve.sim.launch import Simulation, start

if TYPE_CHECKING:
    from collections.abc import Iterator

CAPTURES = Path(__file__).parents[1] / "data" / "captures" / "vllm"
ABSENT = {
    "_created": "when a series began: nobody reads them, and they double the page",
    "http_": "of vLLM's HTTP middleware, not of its engine",
    "vllm:estimated_": "no hardware to estimate for",
    "vllm:mm_cache_": "no images",
    "vllm:iteration_tokens_total": "of scheduler steps; nothing here is concluded from them",
    "vllm:request_params_": "what clients asked for",
    "vllm:request_max_num_generation_tokens": "what clients asked for",
    "vllm:tool_call_parser_invocations": "of the tool parser",
    "vllm:admission_rejections": "off by default",
    "vllm:nixl_num_descriptors": "NIXL's own book-keeping",
    "vllm:nixl_post_time": "NIXL's own book-keeping",
    "vllm:nixl_num_failed_notifications": "NIXL's own book-keeping",
    "vllm:nixl_num_notifications_after_expiry": "NIXL's own book-keeping",
    "vllm:request_num_preemptions": "the counter num_preemptions tells",
    "vllm:request_prefill_kv_computed_tokens": "the counter prompt_tokens_by_source tells",
    "vllm:request_time_per_output_token": "the inter-token latencies tell",
    "vllm:request_inference_time": "the sum of what the other histograms tell",
    "vllm:request_prefill_time": "the sum of what the other histograms tell",
    "vllm:request_decode_time": "the sum of what the other histograms tell",
    "vllm:cache_config_info": "a configuration that the simulation doesn't have",
}
"""Families of the real page, by how their name begins or ends, that the simulation leaves out, and why."""
SGLANG = {
    # SGLang's workers need a GPU: these names are from its collectors, versions 0.5.10 to 0.5.23.
    "prefill": {
        "num_running_reqs",
        "num_queue_reqs",
        "num_prefill_bootstrap_queue_reqs",
        "num_prefill_inflight_queue_reqs",
        "kv_transfer_latency_ms",
        "kv_transfer_bootstrap_ms",
        "time_to_first_token_seconds",
        "realtime_tokens",
    },
    "decode": {
        "num_running_reqs",
        "num_queue_reqs",
        "num_decode_prealloc_queue_reqs",
        "num_decode_transfer_queue_reqs",
        "num_retracted_reqs",
        "num_bootstrap_failed_reqs",
        "num_transfer_failed_reqs",
        "inter_token_latency_seconds",
        "e2e_request_latency_seconds",
    },
}


@pytest.fixture(scope="module", params=["sglang", "vllm"])
def either(request: pytest.FixtureRequest) -> Iterator[Simulation]:
    with start(dialect=request.param) as simulation:
        yield simulation


@pytest.fixture(scope="module")
def vllm() -> Iterator[Simulation]:
    with start(dialect="vllm") as simulation:
        yield simulation


def families(page: str) -> dict[str, tuple[str, set[str]]]:
    """Type and label names by family."""
    return {
        family.name: (family.type, {name for sample in family.samples for name in sample.labels} - {"le"})
        for family in text_string_to_metric_families(page)
    }


def values(url: str) -> dict[str, float]:
    """Every sample by name, those with the same name added up."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(call(url, "/metrics").body.decode()):
        for sample in family.samples:
            if "le" not in sample.labels:
                found[sample.name] = found.get(sample.name, 0) + sample.value
    return found


def left_out(name: str) -> bool:
    return any(name.startswith(part) or name.endswith(part) for part in ABSENT)


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_vllm_families_are_the_captured_ones(vllm: Simulation, role: str) -> None:
    real = families((CAPTURES / f"metrics-{role}.txt").read_text())
    url = vllm.prefill[0] if role == "prefill" else vllm.decode[0]
    ours = families(call(url, "/metrics").body.decode())
    expected = {name: shape for name, shape in real.items() if not left_out(name)}
    assert ours == expected


def test_every_reason_to_leave_out_is_needed() -> None:
    names = families((CAPTURES / "metrics-decode.txt").read_text())
    assert [part for part in ABSENT if not any(n.startswith(part) or n.endswith(part) for n in names)] == []


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_sglang_families(role: str) -> None:
    with start() as sim:
        url = sim.prefill[0] if role == "prefill" else sim.decode[0]
        ours = families(call(url, "/metrics").body.decode())
    assert {f"sglang:{name}" for name in SGLANG[role]} <= set(ours)


def test_latencies_and_transfers_are_counted(either: Simulation) -> None:
    sglang = either.dialect == "sglang"
    prefix = f"{either.dialect}:"
    before = {url: values(url) for url in (either.prefill[0], either.decode[0])}
    for _ in range(3):
        assert chat(either.entry, *copying("481516"), model=either.model).text == "481516"

    def rose(url: str, name: str) -> float:
        return values(url)[prefix + name] - before[url].get(prefix + name, 0)

    decode, prefill = either.decode[0], either.prefill[0]
    assert eventually(lambda: rose(decode, "e2e_request_latency_seconds_count") == 3)
    assert rose(decode, "time_to_first_token_seconds_count") == 3
    assert rose(decode, "inter_token_latency_seconds_count") == 6
    assert rose(decode, "generation_tokens_total") == 9
    queue = "queue_time_seconds" if sglang else "request_queue_time_seconds"
    assert rose(prefill, f"{queue}_count") == 3
    moved = (prefill, "kv_transfer_latency_ms") if sglang else (decode, "nixl_xfer_time_seconds")
    assert rose(moved[0], f"{moved[1]}_count") == 3
    assert rose(moved[0], f"{moved[1]}_sum") > 0
    e2e, ttft = (
        rose(decode, f"{name}_seconds_sum") for name in ("e2e_request_latency", "time_to_first_token")
    )
    assert e2e > ttft > 0


def test_sglang_counts_tokens_when_a_request_is_done_and_as_they_come() -> None:
    with start(time_scale=20) as sim:
        told = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 100}
        asking = threading.Thread(target=call, args=(sim.entry, "/v1/chat/completions", told))
        asking.start()
        assert eventually(lambda: values(sim.decode[0])["sglang:realtime_tokens_total"] > 5)
        assert values(sim.decode[0])["sglang:generation_tokens_total"] == 0
        asking.join(60)
        assert eventually(lambda: values(sim.decode[0])["sglang:generation_tokens_total"] == 100)


def test_a_distribution_as_a_histogram() -> None:
    distribution = Distribution((0.1, 1.0))
    distribution.observe(0.05)
    distribution.observe(0.5, times=2)
    distribution.observe(7.0)
    (metric,) = [distribution.family("x", {"a": "b"}, 1000.0)]
    found = {(sample.name, sample.labels.get("le")): sample.value for sample in metric.samples}
    assert found == pytest.approx(
        {
            ("x_bucket", "100.0"): 1,
            ("x_bucket", "1000.0"): 3,
            ("x_bucket", "+Inf"): 4,
            ("x_count", None): 4,
            ("x_sum", None): 8050.0,
        }
    )
