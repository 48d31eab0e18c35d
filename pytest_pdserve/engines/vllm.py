"""vLLM's OpenAI server (0.32) and vllm-router (0.1.17)."""

from typing import Final

from pytest_pdserve.engines.engine import STARTED, Engine, Handoff, Metric, VersionSource
from pytest_pdserve.engines.meaning import Meaning

_WAITING = "vllm:num_requests_waiting_by_reason"
_STAGE = "vllm:num_requests_kv_fetch_by_stage"

VLLM_METRICS: Final = {
    Meaning.RUNNING: (Metric("vllm:num_requests_running"),),
    # Without its reasons the number includes what waits for its KV.
    Meaning.WAITING: (Metric(_WAITING, (("reason", "capacity"),)), Metric("vllm:num_requests_waiting")),
    Meaning.TRANSFERRING: (Metric(_WAITING, (("reason", "deferred"),)), Metric(_STAGE)),
    Meaning.KV_USAGE: (Metric("vllm:kv_cache_usage_perc"), Metric("vllm:gpu_cache_usage_perc")),
    Meaning.TOKENS_OUT: (Metric("vllm:generation_tokens_total"),),
    Meaning.PROMPT_TOKENS: (Metric("vllm:prompt_tokens_total"),),
    Meaning.PROMPT_COMPUTED: (Metric("vllm:prompt_tokens_by_source_total", (("source", "local_compute"),)),),
    Meaning.TRANSFER_FAILURES: (Metric("vllm:nixl_num_failed_transfers_total"),),
    Meaning.ABORTED: (Metric("vllm:request_success_total", (("finished_reason", "abort"),)),),
    Meaning.STARTED_AT: (STARTED,),
}
"""As captured from vLLM 0.32, and older names; Dynamo's workers export the same."""

VLLM: Final = Engine(
    name="vllm",
    owned_by=frozenset({"vllm"}),
    ready={
        "proxy": ("/v1/models",),
        "router": ("/readiness", "/health"),
        "prefill": ("/health",),
        "decode": ("/health",),
    },
    versions=(VersionSource(at="worker", path="/version", keys=("version",)),),
    metrics=VLLM_METRICS,
    handoff=Handoff.PARAMETERS,
    blames={"Prefill request failed": "prefill", "Decode request failed": "decode"},
)
