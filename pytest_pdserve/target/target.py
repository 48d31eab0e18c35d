"""`Target`: the deployment under acceptance as plain data that travels between processes."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from pytest_pdserve.settings import one_line


class Role(StrEnum):
    """What a service does for a request, in the order in which a request meets them."""

    PROXY = "proxy"
    ROUTER = "router"
    PREFILL = "prefill"
    DECODE = "decode"


class TargetError(ValueError):
    """One line for people: why this target cannot be tested."""

    def __init__(self, line: str) -> None:
        super().__init__(one_line(line))


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One process that serves HTTP."""

    role: Role
    url: str
    """Base URL without a trailing slash and without /v1."""
    name: str
    """What people read: "router", "prefill", or "prefill 2" where there are several."""
    declared: bool
    """Whether the settings name it; else a router told of it or the common layout suggests it."""
    bootstrap_port: int | None = None
    """Where a prefill of SGLang meets its decodes, as the router tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A deployment as resolved: no secrets, no open questions."""

    name: str
    entry: str
    services: tuple[Service, ...]
    engine: str
    engine_version: str | None = None
    model: str | None = None
    models: tuple[str, ...] = ()
    """What the entry offers."""
    max_model_len: int | None = None
    """Longest prompt plus answer in tokens, where the server tells."""
    notes: tuple[str, ...] = ()
    """Lines that a person should read before trusting a verdict."""
    unreachable: str | None = None
    """Why nothing can be sent to the entry, in one line; None when it answers."""

    def of(self, role: Role) -> tuple[Service, ...]:
        """The services of one role, in order."""
        return tuple(service for service in self.services if service.role is role)

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists and strings."""
        return msgspec.json.decode(msgspec.json.encode(self), type=dict[str, Any])

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Target":
        """The inverse of `to_json`. Raises msgspec.ValidationError when the data is not of that shape."""
        return msgspec.convert(data, cls)
