"""Times at which something gives up by default: a duration just there hints at who did."""

from __future__ import annotations

from typing import Final

PLATEAUS: Final = (
    (10.0, "Mooncake's client TTL (Mooncake issue 3688)"),
    (20.0, "SGLang's health check time-out (sglang issue 22511)"),
    (
        30.0,
        "vLLM's NIXL lease, or a proxy's wait on a stale connection (llm-d issue 2194, LLMKube issue 459)",
    ),
    (38.0, "UCX's first connection, once after a start (sglang pull request 28737)"),
    (60.0, "nginx's proxy_read_timeout or a load balancer's idle time-out (litellm issue 34374)"),
    (100.0, "Cloudflare's wait for an origin (tinfoil issue 469)"),
    (120.0, "vLLM's NIXL abort time-out (vllm issue 24249)"),
    (
        300.0,
        "SGLang's bootstrap or waiting time-out, vLLM's NIXL abort time-out (sglang issue 9266, vllm 29906)",
    ),
    (480.0, "vLLM's Mooncake abort time-out (vllm issue 35943)"),
    (600.0, "a raised SGLang waiting time-out, or the openai client's default (sglang issue 26092)"),
    (1800.0, "sglang-router's request time-out (sglang pull request 29482)"),
)
"""Seconds and whose default that is; deployments override them."""
NEAR: Final = 0.02
"""How far off, as a share, and half a second on top."""


def plateau(duration: float) -> str | None:
    """Whose default time-out `duration` (seconds) looks like, in one line; None when it is none."""
    for limit, whose in PLATEAUS:
        if limit <= duration + 0.05 and duration - limit <= NEAR * limit + 0.5:
            return f"{duration:.1f} s looks like {whose}"
    return None
