"""What an engine family looks like from outside, as data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Literal

from pytest_pdserve.engines.meaning import Meaning

WORKERS_PATH: Final = "/workers"
"""Where sglang-router and vllm-router list their workers."""


class Handoff(StrEnum):
    """How prefill and decode are brought together for one request."""

    ROOM = "room"
    """Both get the request at once, with the address of prefill's bootstrap server and the number of a room."""
    PARAMETERS = "parameters"
    """Prefill gets it first; what it answers in kv_transfer_params goes to decode with the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSource:
    """Where a version can be read: a GET path and the keys that lead to it in the JSON answer."""

    at: Literal["entry", "worker"]
    path: str
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Metric:
    """One sample name of a Prometheus page, and the labels that its samples must have."""

    name: str
    labels: tuple[tuple[str, str], ...] = ()
    role: str | None = None
    """The role that it means this for; None for both."""


STARTED: Final = Metric("process_start_time_seconds")
"""What every Prometheus client library exports of its process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One engine family."""

    name: str
    owned_by: frozenset[str]
    """`owned_by` in /v1/models that only this family's servers say."""
    router_owned_by: frozenset[str] = frozenset()
    """The same, but telling only when the server also lists workers."""
    ready: Mapping[str, tuple[str, ...]]
    """By role (proxy, router, prefill, decode): cheap GET paths that answer 200 when the service is up.

    In order of preference; 404 means that this version lacks the path and the next one holds. None of
    them makes a server compute anything.
    """
    models_path: str = "/v1/models"
    versions: tuple[VersionSource, ...] = ()
    metrics_path: str = "/metrics"
    metrics: Mapping[Meaning, tuple[Metric, ...]] = field(
        default_factory=lambda: {Meaning.STARTED_AT: (STARTED,)}
    )
    """What a worker's metrics mean: for each meaning the names that versions have given it, the newest first."""
    gauges_current: bool = True
    """Whether its gauges tell of the very moment at which they are read."""
    handoff: Handoff | None = None
    """How a prefill and a decode can be asked directly; None where that isn't known."""
    blames: Mapping[str, str] = field(default_factory=dict)
    """What an error text or an error header's value begins with or holds -> the layer that it names."""
