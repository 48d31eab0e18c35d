"""What the model can do alone, tried before a probe is allowed to demand it.

A capability that is missing alone is the model's affair: probes that need it are skipped. One that works alone
and fails in a probe is the deployment's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pytest_pdserve.chat import COPY_PROMPT_TOKENS, COPY_WAYS, new_copying
from pytest_pdserve.deployment import ProbeFailure
from pytest_pdserve.load import Sends

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping, Sequence

    from pytest_pdserve.chat import Message

    Ask = Callable[[Sequence[Message], Mapping[str, Any]], str]
    """Asks with these messages and parameters and returns the answer's text; raises for one that isn't whole."""

CAPABILITIES: Final = frozenset({"copy"})
"""Names that the mark `needs` knows. copy: give back six digits after three worked examples."""

COPY_TRIES: Final = 4
COPY_ENOUGH: Final = 3
CALIBRATION_SENDS: Final = Sends(
    requests=COPY_TRIES * len(COPY_WAYS),
    prompt_tokens=COPY_TRIES * len(COPY_WAYS) * COPY_PROMPT_TOKENS,
    output_tokens=COPY_TRIES * sum(way["max_tokens"] for way in COPY_WAYS),
)
"""What trying everything out sends at most."""


class CapabilityMissing(Exception):
    """The model can't do this even alone: whoever needs it doesn't apply. One line."""


class CapabilityUnknown(Exception):
    """Trying it out failed earlier in this run, so nobody knows. One line."""


@dataclass(slots=True)
class Capabilities:
    """What has been tried so far in this run; each capability is tried once."""

    copy_way: Mapping[str, Any] | None = None
    """The parameters with which the model copies; None while that isn't known, or where it doesn't."""
    _missing: dict[str, str] = field(default_factory=dict)
    _failed: dict[str, str] = field(default_factory=dict)

    def require(self, names: Sequence[str], ask: Ask, source: random.Random) -> None:
        """Try what isn't known yet.

        Raises CapabilityMissing or CapabilityUnknown, and whatever `ask` raises the first time that it does.
        """
        for name in names:
            if name in self._failed:
                raise CapabilityUnknown(f"whether the model can {name} is unknown: {self._failed[name]}")
            if name in self._missing:
                raise CapabilityMissing(self._missing[name])
            if self.copy_way is None:
                try:
                    self._try_copy(ask, source)
                except ProbeFailure as failure:
                    # What failed or hung once is not tried again at the cost of every probe that needs it.
                    self._failed[name] = f"trying it out failed: {failure.finding.what}"
                    raise
                except CapabilityMissing as missing:
                    self._missing[name] = str(missing)
                    raise

    def _try_copy(self, ask: Ask, source: random.Random) -> None:
        asked = right = 0
        for way in COPY_WAYS:
            outcomes: list[bool] = []
            while outcomes.count(True) < COPY_ENOUGH and outcomes.count(False) <= COPY_TRIES - COPY_ENOUGH:
                copying = new_copying(source)
                outcomes.append(copying.copied(ask(copying.messages, way)))
            if outcomes.count(True) == COPY_ENOUGH:
                self.copy_way = way
                return
            asked, right = asked + len(outcomes), right + outcomes.count(True)
        raise CapabilityMissing(
            f"asked alone, the model copied {right} of {asked} codes: it can't, or every answer is wrong"
        )
