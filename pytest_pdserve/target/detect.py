"""Which engine family answers, and which version of it."""

from collections.abc import Iterable
from typing import Any

from pytest_pdserve.engines import DYNAMO, ENGINES, OPENAI
from pytest_pdserve.engines.dynamo import HEALTH_KEYS
from pytest_pdserve.target.models import Model


def engine_name(*, entry: Iterable[Model], workers: Iterable[Model], lists_workers: bool, health: Any) -> str:
    """The family that the answers speak of: the entry's models, the workers', the entry's /health."""
    at_entry, at_workers = _owners(entry), _owners(workers)
    for owners in (at_entry, at_workers):
        for engine in ENGINES.values():
            if engine.owned_by & owners:
                return engine.name
    if isinstance(health, dict) and health.keys() >= HEALTH_KEYS:
        return DYNAMO.name
    if lists_workers:
        for engine in ENGINES.values():
            if engine.router_owned_by & at_entry:
                return engine.name
    return OPENAI.name


def read_version(data: Any, keys: tuple[str, ...]) -> str | None:
    """The text behind `keys` in a JSON answer, if there is one."""
    for key in keys:
        data = data.get(key) if isinstance(data, dict) else None
    return data if isinstance(data, str) and 0 < len(data) <= 64 else None


def _owners(models: Iterable[Model]) -> set[str]:
    return {model.owned_by for model in models if model.owned_by is not None}
