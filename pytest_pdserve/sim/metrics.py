"""The workers' /metrics: read from the engine's tally when scraped, so that tokens cost nothing extra."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from pytest_pdserve.sim.plan import Plan, Role
from pytest_pdserve.sim.tally import Stage, Tally

if TYPE_CHECKING:
    from collections.abc import Iterator

_PREFILL_GAUGES = {
    "num_prefill_bootstrap_queue_reqs": Stage.BOOTSTRAP,
    "num_prefill_inflight_queue_reqs": Stage.INFLIGHT,
}
_DECODE_GAUGES = {
    "num_decode_prealloc_queue_reqs": Stage.PREALLOC,
    "num_decode_transfer_queue_reqs": Stage.TRANSFER,
}


def queue_depths(tally: Tally, role: Role) -> dict[str, int]:
    """SGLang's names for how many requests stand in each of a role's queues."""
    own = _PREFILL_GAUGES if role is Role.PREFILL else _DECODE_GAUGES
    stages = {"num_running_reqs": Stage.RUNNING, "num_queue_reqs": Stage.WAITING, **own}
    return {name: tally.stages[stage] for name, stage in stages.items()}


class SglangCollector:
    """SGLang's metric families (0.5.x names and labels) for one worker."""

    def __init__(self, plan: Plan, role: Role, tally: Tally) -> None:
        self._plan = plan
        self._role = role
        self._tally = tally
        labels = {"engine_type": str(role), "model_name": plan.model}
        self._labels = labels | {"moe_ep_rank": "0", "pp_rank": "0", "tp_rank": "0"}
        self._short_labels = labels

    def collect(self) -> Iterator[Metric]:
        """Yield every family with its present value."""
        tally = self._tally
        gauges: dict[str, float] = {**queue_depths(tally, self._role)}
        gauges["num_used_tokens"] = tally.kv_tokens
        gauges["token_usage"] = tally.kv_tokens / self._plan.kv_tokens
        gauges["max_total_num_tokens"] = self._plan.kv_tokens
        gauges["num_retracted_reqs"] = tally.stages[Stage.RETRACTED]
        for name, value in gauges.items():
            gauge = GaugeMetricFamily(f"sglang:{name}", name, labels=list(self._labels))
            gauge.add_metric(list(self._labels.values()), value)
            yield gauge
        counters = {
            "num_bootstrap_failed_reqs": tally.bootstrap_failed,
            "num_transfer_failed_reqs": tally.transfer_failed,
        }
        for name, value in counters.items():
            failures = CounterMetricFamily(f"sglang:{name}", name, labels=list(self._labels))
            failures.add_metric(list(self._labels.values()), value)
            yield failures
        totals = {
            "prompt_tokens": tally.finished_prompt_tokens,
            "generation_tokens": tally.finished_output_tokens,
            "cached_tokens": tally.cached_tokens,
            "num_requests": tally.requests,
            "num_aborted_requests": tally.aborted,
        }
        for name, value in totals.items():
            total = CounterMetricFamily(f"sglang:{name}", name, labels=list(self._short_labels))
            total.add_metric(list(self._short_labels.values()), value)
            yield total
        modes = {
            "decode": tally.output_tokens,
            "prefill_compute": tally.computed_tokens,
            "prefill_cache": tally.cached_tokens if self._role is Role.PREFILL else 0,
        }
        realtime = CounterMetricFamily(
            "sglang:realtime_tokens", "realtime_tokens", labels=[*self._labels, "mode"]
        )
        for mode, value in modes.items():
            realtime.add_metric([*self._labels.values(), mode], value)
        yield realtime
        yield from self._histograms()

    def _histograms(self) -> Iterator[Metric]:
        times, short = self._tally.times, self._short_labels
        yield times.ttft.family("sglang:time_to_first_token_seconds", short)
        yield times.itl.family("sglang:inter_token_latency_seconds", short)
        yield times.e2e.family("sglang:e2e_request_latency_seconds", short)
        yield times.queue.family("sglang:queue_time_seconds", self._labels)
        if self._role is Role.PREFILL:
            yield times.bootstrap.family("sglang:kv_transfer_bootstrap_ms", self._labels, 1000.0)
            yield times.transfer.family("sglang:kv_transfer_latency_ms", self._labels, 1000.0)
