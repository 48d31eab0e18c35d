"""NVIDIA Dynamo (1.6.1): the frontend; its workers serve HTTP only on an optional system port."""

from typing import Final

from pytest_pdserve.engines.engine import Engine, VersionSource
from pytest_pdserve.engines.vllm import VLLM_METRICS

# A worker's own /health and /live say 503 "notready" while it serves, so its metrics page stands for it.
_WORKER = ("/metrics",)

DYNAMO: Final = Engine(
    name="dynamo",
    owned_by=frozenset({"nvidia"}),
    ready={
        "proxy": ("/v1/models",),
        "router": ("/health",),
        "prefill": _WORKER,
        "decode": _WORKER,
    },
    metrics=VLLM_METRICS,
    versions=(VersionSource(at="entry", path="/openapi.json", keys=("info", "version")),),
)

HEALTH_KEYS: Final = frozenset({"status", "endpoints", "instances"})
"""The keys of the frontend's /health, by which it is recognised when it serves no model yet."""
