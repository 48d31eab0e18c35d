"""The marks: each one's arguments as a typed, validated value.

A mark's function has the mark's signature; what it returns is what the rest of the house works with, and a
ValueError or TypeError from it is the one line that a person reads when collection fails.
"""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from pytest_pdserve.capabilities import CAPABILITIES
from pytest_pdserve.judge import LatencyBudget
from pytest_pdserve.load import Sends

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


class Depth(StrEnum):
    """How far a run goes; each depth includes the ones before it."""

    QUICK = "quick"
    STANDARD = "standard"
    DEEP = "deep"

    def includes(self, other: Depth) -> bool:
        """Whether a run of this depth has the probes of `other`."""
        order = list(Depth)
        return order.index(other) <= order.index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiTurn:
    """A probe of several turns in one conversation."""

    rounds: int
    tools: bool


def latency_budget(
    *,
    ttft: float | None = None,
    second_token: float | None = None,
    itl_p99: float | None = None,
    e2e: float | None = None,
) -> LatencyBudget:
    """Upper limits in seconds that all replies of the test must keep."""
    limits = {"ttft": ttft, "second_token": second_token, "itl_p99": itl_p99, "e2e": e2e}
    for name, limit in limits.items():
        if limit is not None and not _positive(limit):
            raise ValueError(f"{name} has to be a number of seconds above 0, not {limit!r}")
    if all(limit is None for limit in limits.values()):
        raise ValueError(f"give at least one of {', '.join(limits)}, in seconds")
    return LatencyBudget(**limits)


def multi_turn(*, rounds: int, tools: bool = False) -> MultiTurn:
    """The test holds one conversation of so many rounds; it gets them as the argument `rounds`."""
    if not _count(rounds):
        raise ValueError(f"rounds has to be a whole number above 0, not {rounds!r}")
    if not isinstance(tools, bool):
        raise TypeError(f"tools has to be true or false, not {tools!r}")
    return MultiTurn(rounds=rounds, tools=tools)


def concurrency(*levels: int) -> tuple[int, ...]:
    """The test runs once for each level, which it gets as the argument `level`."""
    if not levels or not all(_count(level) for level in levels):
        raise ValueError(f"give levels as whole numbers above 0, such as 1, 8, 32, not {levels!r}")
    if len(set(levels)) < len(levels):
        raise ValueError(f"a level stands twice in {levels!r}")
    return levels


def disruptive() -> bool:
    """The test may disturb other users of the deployment; it runs only with --pd-disruptive."""
    return True


def can_wedge() -> bool:
    """The test may leave a deployment that answers nobody any more; afterwards a canary asks."""
    return True


def settles() -> bool:
    """The test finds out whether latencies are steady; when it fails, no latency budget is judged after it."""
    return True


def needs(*capabilities: str) -> tuple[str, ...]:
    """The test is skipped where model or server can't do these even alone."""
    unknown = [name for name in capabilities if name not in CAPABILITIES]
    if unknown or not capabilities:
        raise ValueError(f"known capabilities are {', '.join(sorted(CAPABILITIES))}, not {unknown!r}")
    return capabilities


def depth(least: str) -> Depth:
    """The test runs from this depth on: quick, standard or deep."""
    if least not in list(Depth):
        raise ValueError(f"a depth is one of {', '.join(Depth)}, not {least!r}")
    return Depth(least)


def sends(*, requests: int, prompt_tokens: int, output_tokens: int) -> Sends:
    """What the test sends at most (with concurrency: for each of its level); it can't send more."""
    values = {"requests": requests, "prompt_tokens": prompt_tokens, "output_tokens": output_tokens}
    for name, value in values.items():
        if not _count(value):
            raise ValueError(f"{name} has to be a whole number above 0, not {value!r}")
    return Sends(**values)


MARKS: Final[dict[str, Callable[..., Any]]] = {
    function.__name__: function
    for function in (
        latency_budget,
        multi_turn,
        concurrency,
        disruptive,
        can_wedge,
        settles,
        needs,
        depth,
        sends,
    )
}


def marker_lines() -> list[str]:
    """One line a mark, as `pytest --markers` shows them."""
    return [
        f"{name}{inspect.signature(function).replace(return_annotation=inspect.Signature.empty)}: "
        f"{(function.__doc__ or '').strip()}"
        for name, function in MARKS.items()
    ]


def read_mark(node: pytest.Item | pytest.Function, name: str) -> Any:
    """The typed value of the closest mark of that name on `node`; None when there is none.

    Raises ValueError with one line that names the mark, what is wrong with it, and what is allowed.
    """
    mark = node.get_closest_marker(name)
    if mark is None:
        return None
    function = MARKS[name]
    try:
        return function(*mark.args, **mark.kwargs)
    except (TypeError, ValueError) as problem:
        raise ValueError(f"@pytest.mark.{name}: {problem}") from None


def _positive(value: object) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value) and value > 0  # type: ignore[arg-type, operator]


def _count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
