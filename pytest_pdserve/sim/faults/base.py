"""What a fault is: the moments at which it may strike, the requests it strikes, and how it is written."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

from pytest_pdserve.sim.plan import Role

if TYPE_CHECKING:
    from pytest_pdserve.sim.output import Output

HOLD = b"\x00hold"
"""In place of a token: none in this step; the request keeps its place in the batch."""

Events = AsyncGenerator[bytes, None]
Outputs = AsyncGenerator["Output", None]


class FaultError(ValueError):
    """A fault text that names no fault or has wrong arguments: one line that says what is valid."""


class Work(StrEnum):
    """Kinds of simulated work whose pace a fault may change."""

    PREFILL = "prefill"
    TRANSFER = "transfer"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class Call:
    """What a fault may know of a request. `turn` counts user messages; `concurrency` includes this request."""

    stream: bool = False
    turn: int = 1
    reused: bool = False
    idle: float = 0.0
    """Seconds for which the reused connection had been idle."""
    pair: tuple[int, int] | None = None
    """Of a decode: which prefill and which decode of the deployment, from 0."""
    concurrency: int = 1
    prompt_tokens: int = 0
    disconnect: Callable[[], None] | None = None
    """Resets the client's connection."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Which requests a fault strikes: all, unless it says otherwise.

    role: in which processes; after: not the first so many; share: so many of them, 0 to 1, decided by the seed;
    above: only above so many requests at once; turn: only from this user message on; reused: 1 for requests on
    reused connections only.
    """

    role: Role | None = None
    after: int = 0
    share: float = 1.0
    above: int = 0
    turn: int = 1
    reused: int = 0

    def covers(self, call: Call, number: int, chance: float) -> bool:
        """Whether it strikes the request with this number (from 1)."""
        return (
            number > self.after
            and chance < self.share
            and call.concurrency > self.above
            and call.turn >= self.turn
            and (call.reused or not self.reused)
        )


class Fault:
    """One active fault. Subclasses override the moments they strike at; the others stay sound.

    Each moment is given the request and its number among those that the fault has struck.
    """

    name: ClassVar[str]
    about: ClassVar[str]
    report: ClassVar[str]
    """The public report whose failure it imitates."""
    roles: ClassVar[tuple[Role, ...]] = (Role.DECODE,)
    """Where it can strike; the first is where it does unless its scope says otherwise."""
    arguments: ClassVar[str] = ""
    defaults: ClassVar[tuple[float, ...]] = ()
    swallows_aborts: ClassVar[bool] = False
    """On a proxy: whether it reads answers on after their clients have gone."""

    leaks: ClassVar[bool] = False
    """On decode: whether the KV of requests that were given up stays taken."""

    recomputes: ClassVar[bool] = False
    """On decode: whether it computes the prompt itself although its KV came over."""

    hot_spot: ClassVar[bool] = False
    """On a router: whether it sends everything to its first workers."""

    def __init__(self, values: Sequence[str], scope: Scope, scale: float = 1.0) -> None:
        self.scope = scope
        self.scale = scale
        self.lifted = asyncio.Event()
        self.numbers = self._numbers(values)

    def _numbers(self, values: Sequence[str]) -> list[float]:
        if len(values) > len(self.defaults):
            taken = f"at most {len(self.defaults)} ({self.arguments})" if self.defaults else "no"
            raise FaultError(
                f'fault {self.name} takes {taken} plain value, got "{values[len(self.defaults)]}"'
            )
        given = [number(self.name, value) for value in values]
        return given + list(self.defaults[len(given) :])

    async def before_answer(self, call: Call, nth: int) -> None:
        """Before anything is done for a request; not even headers have gone out."""

    async def before_bootstrap(self, call: Call, nth: int) -> None:
        """On prefill, before it will hear of decode."""

    async def before_transfer(self, call: Call, nth: int) -> None:
        """On prefill, when the KV is computed and before it is offered."""

    async def before_pull(self, call: Call, nth: int) -> None:
        """On decode, before it asks prefill for the KV."""

    async def before_first_token(self, call: Call, nth: int) -> None:
        """On decode, when the KV has arrived and before the first token."""

    def abandoned(self, call: Call) -> None:
        """The client left before its answer was whole."""

    def context(self, pieces: list[bytes], call: Call, nth: int) -> list[bytes]:
        """On decode, what the KV that arrived is read as."""
        return pieces

    def tokens(
        self, tokens: Iterator[bytes], pieces: list[bytes], again: Callable[[list[bytes]], Iterator[bytes]]
    ) -> Iterator[bytes]:
        """On decode, the answer's tokens; `again` generates another answer from other context."""
        return tokens

    def outputs(self, outputs: Outputs, call: Call, nth: int) -> Outputs:
        """On decode, the answer's steps before they are written in the engine's form."""
        return outputs

    def events(self, events: Events, call: Call, nth: int) -> Events:
        """On decode or router, the bytes of a streamed answer, an event at a time."""
        return events

    def pace(self, work: Work, batch: int) -> float:
        """The factor by which a kind of work takes longer, for so many requests in the batch."""
        return 1.0

    def refusals(self) -> int | None:
        """On a router, after how many refusals (4xx) in a row it opens its breakers; None for never."""
        return None

    def patience(self) -> float:
        """On a proxy, how many seconds it waits for a byte."""
        return float("inf")

    def health(self, status: int) -> int:
        """What /health answers where `status` would be right."""
        return status

    async def stall(self, seconds: float) -> None:
        """Hold a request for a time (inf: for ever), until the fault is lifted or the client leaves."""
        timeout = None if seconds == float("inf") else seconds * self.scale
        try:
            await asyncio.wait_for(self.lifted.wait(), timeout)
        except TimeoutError:
            return


def number(name: str, value: str) -> float:
    """Read a plain value. Raises FaultError unless it is a number from 0 to inf."""
    try:
        read = float(value)
    except ValueError:
        read = -1.0
    if not read >= 0:
        raise FaultError(f'fault {name}: "{value}" is no number (use 0 or more, or inf)')
    return read


def read_scope(kind: type[Fault], named: Mapping[str, str]) -> Scope:
    """Read `key=value` arguments. Raises FaultError with one line that names what is valid."""
    fields = {field.name for field in dataclasses.fields(Scope)}
    values: dict[str, object] = {}
    for key, text in named.items():
        if key not in fields:
            raise FaultError(f'fault {kind.name}: no argument "{key}" (known: {", ".join(sorted(fields))})')
        if key == "role":
            values[key] = _role(kind, text)
            continue
        try:
            values[key] = float(text) if key == "share" else int(text)
        except ValueError:
            raise FaultError(f'fault {kind.name}: {key} takes a number, not "{text}"') from None
    scope = Scope(**values)  # type: ignore[arg-type]
    if not 0.0 <= scope.share <= 1.0:
        raise FaultError(f"fault {kind.name}: share takes a number from 0 to 1, not {scope.share:g}")
    return scope


def _role(kind: type[Fault], text: str) -> Role:
    if text not in kind.roles:
        raise FaultError(f'fault {kind.name} has no role "{text}" (known: {", ".join(kind.roles)})')
    return Role(text)


class Strikes:
    """The faults that strike one request, each with the request's number among those it strikes."""

    def __init__(self, struck: Sequence[tuple[Fault, int]], call: Call) -> None:
        self._struck = struck
        self._call = call

    def __bool__(self) -> bool:
        return bool(self._struck)

    async def before_answer(self) -> None:
        """See Fault.before_answer."""
        await self._each(lambda fault, nth: fault.before_answer(self._call, nth))

    async def before_bootstrap(self) -> None:
        """See Fault.before_bootstrap."""
        await self._each(lambda fault, nth: fault.before_bootstrap(self._call, nth))

    async def before_transfer(self) -> None:
        """See Fault.before_transfer."""
        await self._each(lambda fault, nth: fault.before_transfer(self._call, nth))

    async def before_pull(self) -> None:
        """See Fault.before_pull."""
        await self._each(lambda fault, nth: fault.before_pull(self._call, nth))

    @property
    def recomputes(self) -> bool:
        """See Fault.recomputes."""
        return any(fault.recomputes for fault, _ in self._struck)

    @property
    def leak(self) -> asyncio.Event | None:
        """What a leaked request's KV waits for, where a fault leaks it."""
        return next((fault.lifted for fault, _ in self._struck if fault.leaks), None)

    def abandoned(self) -> None:
        """See Fault.abandoned."""
        for fault, _ in self._struck:
            fault.abandoned(self._call)

    async def before_first_token(self) -> None:
        """See Fault.before_first_token."""
        await self._each(lambda fault, nth: fault.before_first_token(self._call, nth))

    async def _each(self, moment: Callable[[Fault, int], Awaitable[None]]) -> None:
        for fault, nth in self._struck:
            await moment(fault, nth)

    def context(self, pieces: list[bytes]) -> list[bytes]:
        """See Fault.context."""
        for fault, nth in self._struck:
            pieces = fault.context(pieces, self._call, nth)
        return pieces

    def tokens(
        self, tokens: Iterator[bytes], pieces: list[bytes], again: Callable[[list[bytes]], Iterator[bytes]]
    ) -> Iterator[bytes]:
        """See Fault.tokens."""
        for fault, _ in self._struck:
            tokens = fault.tokens(tokens, pieces, again)
        return tokens

    async def outputs(self, outputs: Outputs) -> Outputs:
        """See Fault.outputs."""
        layers = [outputs]
        for fault, nth in self._struck:
            layers.append(fault.outputs(layers[-1], self._call, nth))
        async with AsyncExitStack() as stack:
            for layer in layers:
                stack.push_async_callback(layer.aclose)
            async for output in layers[-1]:
                yield output

    async def events(self, events: Events) -> Events:
        """See Fault.events."""
        layers = [events]
        for fault, nth in self._struck:
            layers.append(fault.events(layers[-1], self._call, nth))
        async with AsyncExitStack() as stack:
            for layer in layers:
                stack.push_async_callback(layer.aclose)
            async for event in layers[-1]:
                yield event
