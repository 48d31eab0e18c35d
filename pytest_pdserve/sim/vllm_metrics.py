"""vLLM's /metrics (0.32), as far as the simulated engine has something to say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from pytest_pdserve.sim.tally import Stage, Tally

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_pdserve.sim.plan import Plan

_KV_BYTES_PER_TOKEN = 83_000
"""Measured for SmolLM2-135M in float32: 2.6e8 bytes for 3114 tokens."""
_LOADING = (Stage.PREALLOC, Stage.TRANSFER)


class VllmCollector:
    """vLLM's metric families for one worker."""

    def __init__(self, plan: Plan, tally: Tally) -> None:
        self._plan = plan
        self._tally = tally
        self._labels = {"engine": "0", "model_name": plan.model}

    def collect(self) -> Iterator[Metric]:
        """Yield every family with its present value."""
        tally = self._tally
        deferred = sum(tally.stages[stage] for stage in _LOADING)
        waiting = tally.stages[Stage.WAITING] + tally.stages[Stage.RETRACTED]
        yield self._gauge("num_requests_running", {"": tally.stages[Stage.RUNNING]})
        yield self._gauge("num_requests_waiting", {"": waiting + deferred})
        yield self._gauge(
            "num_requests_waiting_by_reason", {"capacity": waiting, "deferred": deferred}, "reason"
        )
        yield self._gauge("kv_cache_usage_perc", {"": tally.kv_tokens / self._plan.kv_tokens})
        fetched = max(0, tally.prompt_tokens - tally.computed_tokens - tally.cached_tokens)
        sources = {
            "local_compute": tally.computed_tokens,
            "local_cache_hit": tally.cached_tokens,
            "external_kv_transfer": fetched,
        }
        yield self._counter("prompt_tokens", {"": tally.prompt_tokens})
        yield self._counter("prompt_tokens_by_source", sources, "source")
        yield self._counter("prefix_cache_queries", {"": tally.computed_tokens + tally.cached_tokens})
        yield self._counter("prefix_cache_hits", {"": tally.cached_tokens})
        yield self._counter("generation_tokens", {"": tally.output_tokens})
        reasons = {"stop": tally.stopped, "length": tally.requests - tally.stopped, "abort": 0, "error": 0}
        yield self._counter("request_success", reasons, "finished_reason")
        yield self._counter("num_preemptions", {"": tally.retractions})
        yield self._counter("nixl_num_failed_transfers", {"": tally.transfer_failed})
        yield self._counter("nixl_num_kv_expired_reqs", {"": tally.expired})
        moved = HistogramMetricFamily("vllm:nixl_bytes_transferred", "KV fetched.", labels=list(self._labels))
        moved.add_metric(
            list(self._labels.values()), [("+Inf", tally.fetches)], fetched * _KV_BYTES_PER_TOKEN
        )
        yield moved

    def _gauge(self, name: str, values: Mapping[str, float], label: str = "") -> Metric:
        return self._filled(GaugeMetricFamily(f"vllm:{name}", name, labels=self._names(label)), values, label)

    def _counter(self, name: str, values: Mapping[str, float], label: str = "") -> Metric:
        return self._filled(
            CounterMetricFamily(f"vllm:{name}", name, labels=self._names(label)), values, label
        )

    def _names(self, label: str) -> list[str]:
        return [*self._labels, *([label] if label else [])]

    def _filled(
        self, family: GaugeMetricFamily | CounterMetricFamily, values: Mapping[str, float], label: str
    ) -> Metric:
        fixed = list(self._labels.values())
        for own, value in values.items():
            family.add_metric([*fixed, own] if label else fixed, value)
        return family
