"""SGLang's servers (0.5.10 to 0.5.23) and sglang-router (0.3.2)."""

from typing import Final

from pytest_pdserve.engines.engine import STARTED, Engine, Handoff, Metric, VersionSource
from pytest_pdserve.engines.meaning import Meaning

# Not /health: on a worker it is /health_generate by default, which makes a token; such probes have piled up
# and crashed PD workers (sglang issues 8063, 35884, 3695), and a busy worker answers them 503 (22511).
_WORKER = ("/model_info", "/get_model_info", "/v1/models")

_PREFILL, _DECODE = "prefill", "decode"

# Names of 0.5.10 to 0.5.23. generation_tokens_total and prompt_tokens_total advance only when a request is done, so
# they can't tell whether tokens are being made; realtime_tokens_total can, where a version has it.
_METRICS = {
    Meaning.RUNNING: (Metric("sglang:num_running_reqs"),),
    Meaning.WAITING: (Metric("sglang:num_queue_reqs"),),
    Meaning.BOOTSTRAPPING: (
        Metric("sglang:num_prefill_bootstrap_queue_reqs", role=_PREFILL),
        Metric("sglang:num_prefill_prealloc_queue_reqs", role=_PREFILL),
        Metric("sglang:num_decode_prealloc_queue_reqs", role=_DECODE),
    ),
    Meaning.TRANSFERRING: (
        Metric("sglang:num_prefill_inflight_queue_reqs", role=_PREFILL),
        Metric("sglang:num_decode_transfer_queue_reqs", role=_DECODE),
    ),
    Meaning.KV_USAGE: (Metric("sglang:token_usage"),),
    Meaning.TOKENS_OUT: (Metric("sglang:realtime_tokens_total", (("mode", "decode"),)),),
    Meaning.PROMPT_TOKENS: (Metric("sglang:prompt_tokens_total"),),
    Meaning.PROMPT_COMPUTED: (
        Metric("sglang:realtime_tokens_total", (("mode", "prefill_compute"),)),
        Metric("sglang:realtime_tokens_total", (("mode", "prefill"),)),
    ),
    Meaning.TRANSFER_FAILURES: (Metric("sglang:num_transfer_failed_reqs_total"),),
    Meaning.ABORTED: (Metric("sglang:num_aborted_requests_total"),),
    Meaning.STARTED_AT: (STARTED,),
}

SGLANG: Final = Engine(
    name="sglang",
    owned_by=frozenset({"sglang"}),
    router_owned_by=frozenset({"local"}),
    ready={
        "proxy": ("/v1/models",),
        # The router's /health is 200 even without workers; its /readiness is 503 when a role is absent. And a
        # plain server may stand where the router is looked for.
        "router": ("/readiness", "/v1/models"),
        "prefill": _WORKER,
        "decode": _WORKER,
    },
    versions=(
        VersionSource(at="worker", path="/server_info", keys=("version",)),
        VersionSource(at="worker", path="/get_server_info", keys=("version",)),
    ),
    metrics=_METRICS,
    # Its scheduler writes them every 40 decode steps (decode_log_interval), and every 30 s when idle.
    gauges_current=False,
    handoff=Handoff.ROOM,
    blames={
        "Prefill bootstrap failed": "KV transfer",
        "Prefill transfer failed": "KV transfer",
        "Decode handshake failed": "KV transfer",
        "Decode transfer failed": "KV transfer",
        "KVPoll.": "KV transfer",
        "KV checksum mismatch": "KV transfer",
        "Metadata corruption detected": "KV transfer",
        "Prefill server error": "prefill",
        "Decode server error": "decode",
        # The header x-smg-error-code of sglang-router; a breaker opens for both roles, whoever failed.
        "decode_": "decode",
        "prefill_": "prefill",
        "circuits open": "router",
    },
)
