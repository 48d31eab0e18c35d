"""SGLang's servers (0.5.10 to 0.5.23) and sglang-router (0.3.2)."""

from typing import Final

from pytest_pdserve.engines.engine import Engine, VersionSource

# Not /health: on a worker it is /health_generate by default, which makes a token; such probes have piled up
# and crashed PD workers (sglang issues 8063, 35884, 3695), and a busy worker answers them 503 (22511).
_WORKER = ("/model_info", "/get_model_info", "/v1/models")

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
)
