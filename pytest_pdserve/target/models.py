"""Reading /v1/models, and choosing the model under test."""

from dataclasses import dataclass
from typing import Any

from pytest_pdserve.settings import did_you_mean
from pytest_pdserve.target.target import TargetError

LISTED = 12
"""Models that a message lists at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One entry of /v1/models."""

    id: str
    owned_by: str | None = None
    max_model_len: int | None = None
    """Longest prompt plus answer in tokens, where the server tells."""


def read_models(data: Any) -> tuple[Model, ...] | None:
    """The models in a /v1/models answer, or None when the data is no such answer."""
    entries = data.get("data") if isinstance(data, dict) else None
    if not isinstance(entries, list):
        return None
    if not all(
        isinstance(entry, dict) and isinstance(entry.get("id"), str) and entry["id"] for entry in entries
    ):
        return None
    return tuple(
        Model(id=entry["id"], owned_by=_text(entry.get("owned_by")), max_model_len=_length(entry))
        for entry in entries
    )


def choose(wanted: str | None, offered: tuple[Model, ...], where: str) -> Model | None:
    """The wanted model, else the first one offered; None when the server offers none.

    Raises TargetError when another one is wanted than there is.
    """
    ids = [model.id for model in offered]
    if wanted is None or not offered:
        return offered[0] if offered else None
    if wanted not in ids:
        raise TargetError(
            f'{where} offers no model "{wanted}" (offered: {_list(ids)}).{did_you_mean(wanted, ids)}'
        )
    return offered[ids.index(wanted)]


def _list(ids: list[str]) -> str:
    shown = ", ".join(name if len(name) <= 80 else name[:79] + "…" for name in ids[:LISTED])
    return shown if len(ids) <= LISTED else f"{shown} and {len(ids) - LISTED} more"


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _length(entry: dict[str, Any]) -> int | None:
    """SGLang and vLLM say `max_model_len`; Dynamo `context_window`, with 0 for unknown."""
    values = (entry.get("max_model_len"), entry.get("context_window"))
    return next((value for value in values if type(value) is int and value > 0), None)
