"""vLLM's /metrics (0.32), as far as the simulated engine has something to say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from pytest_pdserve.sim.plan import Plan, Role
from pytest_pdserve.sim.tally import Stage, Tally

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


_LOADING = (Stage.PREALLOC, Stage.TRANSFER)


class VllmCollector:
    """vLLM's metric families for one worker."""

    def __init__(self, plan: Plan, role: Role, tally: Tally) -> None:
        self._plan = plan
        self._role = role
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
        if self._role is Role.DECODE:
            stages = {
                "waiting_to_start": tally.stages[Stage.PREALLOC],
                "in_progress": tally.stages[Stage.TRANSFER],
                "completed_waiting": 0,
            }
            yield self._gauge("num_requests_kv_fetch_by_stage", stages, "stage")
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
        reasons = {
            "stop": tally.stopped,
            "length": tally.requests - tally.stopped,
            "abort": 0,
            "error": 0,
            "repetition": 0,
        }
        yield self._counter("request_success", reasons, "finished_reason")
        yield self._counter("num_preemptions", {"": tally.retractions})
        yield self._counter("nixl_num_failed_transfers", {"": tally.transfer_failed})
        yield self._counter("nixl_num_kv_expired_reqs", {"": tally.expired})
        yield from self._caches(fetched)
        yield from self._histograms()
        yield self._gauge(
            "engine_sleep_state", {"awake": 1, "weights_offloaded": 0, "discard_all": 0}, "sleep_state"
        )

    def _caches(self, fetched: int) -> Iterator[Metric]:
        """How much of the prompts needed no computing here, and why."""
        tally = self._tally
        yield self._counter("external_prefix_cache_queries", {"": tally.computed_tokens + fetched})
        yield self._counter("external_prefix_cache_hits", {"": fetched})
        yield self._counter("prompt_tokens_cached", {"": tally.cached_tokens + fetched})
        sources = {"device": tally.cached_tokens, "host": 0, "p2p": fetched, "disk": 0}
        yield self._counter(
            "prompt_tokens_cached_by_source", {**sources, "external_unspecified": 0}, "source"
        )

    def _histograms(self) -> Iterator[Metric]:
        times = self._tally.times
        families = {
            "time_to_first_token_seconds": times.ttft,
            "inter_token_latency_seconds": times.itl,
            "e2e_request_latency_seconds": times.e2e,
            "request_queue_time_seconds": times.queue,
            "request_prompt_tokens": times.prompt,
            "request_generation_tokens": times.output,
            "nixl_xfer_time_seconds": times.transfer,
            "nixl_bytes_transferred": times.transfer_bytes,
        }
        for name, distribution in families.items():
            yield distribution.family(f"vllm:{name}", self._labels)

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
