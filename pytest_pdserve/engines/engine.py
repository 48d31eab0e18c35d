"""What an engine family looks like from outside, as data."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

WORKERS_PATH: Final = "/workers"
"""Where sglang-router and vllm-router list their workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSource:
    """Where a version can be read: a GET path and the keys that lead to it in the JSON answer."""

    at: Literal["entry", "worker"]
    path: str
    keys: tuple[str, ...]


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
