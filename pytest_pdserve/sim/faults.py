"""Faults on request: each a small named object that imitates a publicly reported failure.

A fault is written `NAME` or `NAME=ARGS`, where ARGS is a comma-separated list of plain values and of
`key=value` pairs; `after=N` and `share=X` (0..1) limit any fault to requests after the Nth and to a share of
them, decided by the seed. Requests are counted by each process for itself, from the moment the fault is set.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pytest_pdserve.sim.plan import Role

if TYPE_CHECKING:
    from collections.abc import Sequence


class FaultError(ValueError):
    """A fault text that names no fault or has wrong arguments: one line that says what is valid."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Which requests a fault strikes."""

    after: int = 0
    share: float = 1.0


class Fault:
    """One active fault. Subclasses override the moments they strike at; the others stay sound."""

    name: ClassVar[str]
    about: ClassVar[str]
    report: ClassVar[str]
    """The public report whose failure it imitates."""
    arguments: ClassVar[str] = ""
    role: ClassVar[Role] = Role.DECODE

    def __init__(self, values: Sequence[str], scope: Scope) -> None:
        if values:
            raise FaultError(f'fault {self.name} takes no plain value, got "{values[0]}"')
        self.scope = scope
        self.lifted = asyncio.Event()

    async def before_first_token(self, nth: int, scale: float) -> None:
        """Runs on decode when the KV has arrived and before the first token; `nth` counts struck requests."""

    async def stall(self, seconds: float | None) -> None:
        """Hold the request for a time, or for ever (None): until the fault is lifted or the client leaves."""
        try:
            await asyncio.wait_for(self.lifted.wait(), seconds)
        except TimeoutError:
            return


class HangBeforeFirstToken(Fault):
    """Everything is prefilled and handed over, and then decode never leaves its transfer queue."""

    name = "hang-before-first-token"
    about = "headers come, then nothing: prefill is done, decode's transfer queue stays above 0"
    report = "vllm-project/vllm#35943, sgl-project/sglang#33789 (stuck after the KV transfer, /health 200)"

    async def before_first_token(self, nth: int, scale: float) -> None:
        """Hang."""
        await self.stall(None)


class Series(Fault):
    """The first answers after a restart take given times, none of which a cold start explains."""

    name = "series"
    about = "seconds to the first token of the 1st, 2nd ... request; inf hangs; a last inf repeats"
    report = "user report: 8 tokens in 17.9, 106.4, 10.5 s and never; near sgl-project/sglang#28737, #6411"
    arguments = "S1,S2,..."

    def __init__(self, values: Sequence[str], scope: Scope) -> None:
        super().__init__((), scope)
        self._seconds = [_seconds(self.name, value) for value in values]
        if not values:
            raise FaultError("fault series needs seconds, such as series=17.9,106.4,10.5,inf")

    async def before_first_token(self, nth: int, scale: float) -> None:
        """Wait as long as the series says for this request."""
        last = self._seconds[-1]
        seconds = (
            self._seconds[nth - 1] if nth <= len(self._seconds) else (last if last == float("inf") else 0.0)
        )
        await self.stall(None if seconds == float("inf") else seconds * scale)


KINDS: dict[str, type[Fault]] = {kind.name: kind for kind in (HangBeforeFirstToken, Series)}
"""Every fault by its name."""


def _seconds(name: str, value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:
        raise FaultError(f'fault {name}: "{value}" is no number of seconds (use 0 or more, or inf)')
    return seconds


def parse(text: str) -> Fault:
    """Read one fault text. Raises FaultError with one line that names what is valid."""
    name, _, arguments = text.partition("=")
    kind = KINDS.get(name)
    if kind is None:
        raise FaultError(f'no fault "{name}" (known: {", ".join(sorted(KINDS))})')
    items = [item.strip() for item in arguments.split(",") if item.strip()]
    values = [item for item in items if "=" not in item]
    named = dict(item.split("=", 1) for item in items if "=" in item)
    return kind(values, _scope(name, named))


def _scope(name: str, named: dict[str, str]) -> Scope:
    unknown = sorted(set(named) - {"after", "share"})
    if unknown:
        raise FaultError(f'fault {name}: no argument "{unknown[0]}" (known: after, share)')
    try:
        scope = Scope(after=int(named.get("after", "0")), share=float(named.get("share", "1")))
    except ValueError:
        raise FaultError(f"fault {name}: after takes a whole number and share a number from 0 to 1") from None
    if scope.after < 0 or not 0.0 <= scope.share <= 1.0:
        raise FaultError(f"fault {name}: after takes a whole number and share a number from 0 to 1")
    return scope


class Strikes:
    """The faults that strike one request, each with the request's number among those it strikes."""

    def __init__(self, struck: Sequence[tuple[Fault, int]], scale: float) -> None:
        self._struck = struck
        self._scale = scale

    def __bool__(self) -> bool:
        return bool(self._struck)

    async def before_first_token(self) -> None:
        """See Fault.before_first_token."""
        for fault, nth in self._struck:
            await fault.before_first_token(nth, self._scale)


class Switchboard:
    """The faults active in one process."""

    def __init__(self, role: Role, seed: int, scale: float) -> None:
        self._role = role
        self._scale = scale
        self._seed = seed
        self._texts: tuple[str, ...] = ()
        self._active: list[tuple[Fault, itertools.count[int], itertools.count[int], random.Random]] = []

    @property
    def texts(self) -> tuple[str, ...]:
        """The active faults as they were set, also those of other roles."""
        return self._texts

    def set(self, texts: Sequence[str]) -> None:
        """Replace the active faults. Requests held by one that goes are let go. Raises FaultError."""
        faults = [parse(text) for text in texts]
        for fault, *_ in self._active:
            fault.lifted.set()
        self._texts = tuple(texts)
        self._active = [
            (fault, itertools.count(1), itertools.count(1), random.Random(f"{self._seed} {text}"))
            for fault, text in zip(faults, texts, strict=True)
            if fault.role is self._role
        ]

    def admit(self) -> Strikes:
        """Count one request and tell which faults strike it."""
        struck = []
        for fault, seen, hits, dice in self._active:
            number, chance = next(seen), dice.random()
            if number > fault.scope.after and chance < fault.scope.share:
                struck.append((fault, next(hits)))
        return Strikes(struck, self._scale)
