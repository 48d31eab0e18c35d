"""What the model can do alone, tried before a probe is allowed to demand it.

A capability that is missing alone is the model's affair: probes that need it are skipped. One that works alone
and fails in a probe is the deployment's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pytest_pdserve.chat import COPY_MAX_TOKENS, COPY_PROMPT_TOKENS, new_copying
from pytest_pdserve.deployment import ProbeFailure
from pytest_pdserve.load import Sends

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from pytest_pdserve.chat import Message, Reply

CAPABILITIES: Final = frozenset({"copy"})
"""Names that the mark `needs` knows. copy: give back six digits after three worked examples."""

COPY_TRIES: Final = 4
COPY_ENOUGH: Final = 3
CALIBRATION_SENDS: Final = Sends(
    requests=COPY_TRIES,
    prompt_tokens=COPY_TRIES * COPY_PROMPT_TOKENS,
    output_tokens=COPY_TRIES * COPY_MAX_TOKENS,
)
"""What trying everything out sends at most."""


class CapabilityMissing(Exception):
    """The model can't do this even alone: whoever needs it doesn't apply. One line."""


class CapabilityUnknown(Exception):
    """Trying it out failed earlier in this run, so nobody knows. One line."""


@dataclass(slots=True)
class Capabilities:
    """What has been tried so far in this run; each capability is tried once."""

    _known: dict[str, str | None] = field(default_factory=dict)
    _failed: dict[str, str] = field(default_factory=dict)

    def require(
        self, names: Sequence[str], ask: Callable[[Sequence[Message], int], Reply], source: random.Random
    ) -> None:
        """Try what isn't known yet, with `ask(messages, max_tokens)`, which raises for an answer that isn't whole.

        Raises CapabilityMissing or CapabilityUnknown, and whatever `ask` raises the first time that it does.
        """
        for name in names:
            if name in self._failed:
                raise CapabilityUnknown(f"whether the model can {name} is unknown: {self._failed[name]}")
            if name not in self._known:
                try:
                    self._known[name] = _try_copy(ask, source)
                except ProbeFailure as failure:
                    # What failed or hung once is not tried again at the cost of every probe that needs it.
                    self._failed[name] = f"trying it out failed: {failure.finding.what}"
                    raise
            if (why := self._known[name]) is not None:
                raise CapabilityMissing(why)


def _try_copy(ask: Callable[[Sequence[Message], int], Reply], source: random.Random) -> str | None:
    """None when the model copies; else why not, in one line."""
    copyings = [new_copying(source) for _ in range(COPY_TRIES)]
    texts = [ask(copying.messages, COPY_MAX_TOKENS).text for copying in copyings]
    right = sum(copying.copied(text) for copying, text in zip(copyings, texts, strict=True))
    if right >= COPY_ENOUGH:
        return None
    return f"asked alone, the model copied {right} of {COPY_TRIES} codes: it can't, or every answer is wrong"
