"""Faults on request: each a small named object that imitates a publicly reported failure.

A fault is written `NAME` or `NAME=ARGS`, where ARGS is a comma-separated list of plain values and of
`key=value` pairs. Any fault takes the pairs that `Scope` explains, such as `after=3,share=0.5`. Requests are
counted by each process for itself, from the moment the fault is set.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_pdserve.sim.faults import content, load, processes, proxies, shapes, streams, timing
from pytest_pdserve.sim.faults.base import Call, Fault, FaultError, Strikes, Work, read_scope
from pytest_pdserve.sim.faults.processes import ProcessFault

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_pdserve.sim.plan import Role

__all__ = ["KINDS", "Call", "Fault", "FaultError", "ProcessFault", "Strikes", "Switchboard", "Work", "parse"]

KINDS: dict[str, type[Fault]] = {
    kind.name: kind
    for module in (timing, streams, content, shapes, load, processes, proxies)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Fault) and "name" in vars(kind)
}
"""Every fault by its name."""


def parse(text: str, scale: float = 1.0) -> Fault:
    """Read one fault text; `scale` multiplies its times. Raises FaultError: one line that names what is valid."""
    name, _, arguments = text.partition("=")
    kind = KINDS.get(name)
    if kind is None:
        raise FaultError(f'no fault "{name}" (known: {", ".join(sorted(KINDS))})')
    items = [item.strip() for item in arguments.split(",") if item.strip()]
    values = [item for item in items if "=" not in item]
    named = dict(item.split("=", 1) for item in items if "=" in item)
    return kind(values, read_scope(kind, named), scale)


@dataclass(slots=True)
class _Active:
    fault: Fault
    dice: random.Random
    seen: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    struck: itertools.count[int] = field(default_factory=lambda: itertools.count(1))


class Switchboard:
    """The faults active in one process."""

    def __init__(self, role: Role, seed: int, scale: float) -> None:
        self._role = role
        self._scale = scale
        self._seed = seed
        self._texts: tuple[str, ...] = ()
        self._active: list[_Active] = []

    @property
    def texts(self) -> tuple[str, ...]:
        """The active faults as they were set, also those of other roles."""
        return self._texts

    def set(self, texts: Sequence[str]) -> None:
        """Replace the active faults. Requests held by one that goes are let go. Raises FaultError."""
        faults = [parse(text, self._scale) for text in texts]
        for active in self._active:
            active.fault.lifted.set()
        self._texts = tuple(texts)
        self._active = [
            _Active(fault, random.Random(f"{self._seed} {text}"))
            for fault, text in zip(faults, texts, strict=True)
            if (fault.scope.role or fault.roles[0]) is self._role
        ]

    def admit(self, call: Call) -> Strikes:
        """Count one request and tell which faults strike it."""
        struck = []
        for active in self._active:
            number, chance = next(active.seen), active.dice.random()
            if active.fault.scope.covers(call, number, chance):
                struck.append((active.fault, next(active.struck)))
        return Strikes(struck, call)

    def pace(self, work: Work, batch: int = 1) -> float:
        """The factor by which a kind of work takes longer now."""
        factor = 1.0
        for active in self._active:
            factor *= active.fault.pace(work, batch)
        return factor

    def refusals(self) -> int | None:
        """After how many refusals in a row a router opens its breakers; None for never."""
        counts = [count for active in self._active if (count := active.fault.refusals()) is not None]
        return min(counts, default=None)

    def patience(self) -> float:
        """How many seconds a proxy waits for a byte."""
        return min((active.fault.patience() for active in self._active), default=float("inf"))

    def swallows_aborts(self) -> bool:
        """Whether a proxy reads answers on after their clients have gone."""
        return any(active.fault.swallows_aborts for active in self._active)

    def hot_spot(self) -> bool:
        """Whether a router sends everything to its first workers."""
        return any(active.fault.hot_spot for active in self._active)

    def health(self) -> int:
        """The status that /health answers."""
        status = 200
        for active in self._active:
            status = active.fault.health(status)
        return status
