"""What an engine's metrics mean, whatever it calls them."""

from enum import StrEnum


class Meaning(StrEnum):
    """One quantity that a worker shows. Counters count since its process started; gauges are of the moment."""

    RUNNING = "running"
    """Requests in the batch (gauge)."""
    WAITING = "waiting"
    """Requests queued for the batch (gauge)."""
    PREFILLING = "prefilling"
    """Requests whose prompt is being computed, where that is told apart (gauge)."""
    BOOTSTRAPPING = "bootstrapping"
    """Requests whose prefill and decode have not yet agreed on the hand-over (gauge)."""
    TRANSFERRING = "transferring"
    """Requests whose KV is on its way (gauge)."""
    KV_USAGE = "KV usage"
    """The share of KV memory in use, 0 to 1 (gauge)."""
    TOKENS_OUT = "tokens out"
    """Tokens generated (counter)."""
    PROMPT_TOKENS = "prompt tokens"
    """Tokens of the prompts that were taken on (counter)."""
    PROMPT_COMPUTED = "prompt tokens computed"
    """Those of them that were computed here instead of cached or transferred (counter)."""
    TRANSFER_FAILURES = "transfer failures"
    """Hand-overs that failed or expired (counter)."""
    ABORTED = "aborted"
    """Requests that were given up (counter)."""
    STARTED_AT = "started at"
    """When the process started, in seconds since the epoch."""
