"""vLLM's OpenAI server (0.32) and vllm-router (0.1.17)."""

from typing import Final

from pytest_pdserve.engines.engine import Engine, VersionSource

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
)
