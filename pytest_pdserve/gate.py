"""Whether the deployment still answers: after a probe that may have wedged it, and before those that follow."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Final

from pytest_pdserve.deployment import BACKSTOP
from pytest_pdserve.load import Sends

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_pdserve.chat import ChatClient
    from pytest_pdserve.observe import Observer
    from pytest_pdserve.wire import LoopThread

CANARIES: Final = 2
"""Small requests that must all go unanswered, one after another, before a deployment counts as wedged."""
LEAST: Final = 3.0
MOST: Final = 8.0
"""Seconds that a canary has at least and at most, depending on what a small answer usually takes."""
CANARY_SENDS: Final = Sends(requests=CANARIES, prompt_tokens=CANARIES * 200, output_tokens=CANARIES * 8)
_WEDGED, _UNSETTLED = "wedged", "unsettled"


@dataclass(slots=True, kw_only=True)
class Gate:
    """What all processes of a run know of the deployment's state: it lies in files of the run's own folder."""

    client: ChatClient
    """One that gathers no evidence: a canary is evidence itself."""
    loop: LoopThread
    observer: Observer
    folder: Path

    @property
    def wedged(self) -> str | None:
        """Since when nothing is answered any more, in one line; None while something is."""
        return self._read(_WEDGED)

    @property
    def unsettled(self) -> str | None:
        """Why latencies say nothing yet, in one line; None when they settled, or nobody looked."""
        return self._read(_UNSETTLED)

    def answers(self) -> bool:
        """Send canaries on new connections, one after another, until one comes back."""
        bound = self.observer.patience(LEAST, MOST)
        return any(self._canary(bound) for _ in range(CANARIES))

    def close(self, probe: str) -> None:
        """Say that nothing has been answered since `probe`."""
        when = datetime.now().astimezone().strftime("%H:%M:%S")
        self._write(_WEDGED, f"the deployment is wedged since {probe} ({when})")

    def not_settled(self, probe: str) -> None:
        """Say that `probe` saw no steady latency."""
        self._write(_UNSETTLED, f"latency not judged: the deployment did not settle ({probe})")

    def _canary(self, bound: float) -> bool:
        text = f"Say something about the number {random.SystemRandom().randrange(10**6)}."
        ask = partial(self.client.chat, text, max_tokens=8, deadline=bound, connection="fresh")
        return self.loop.run(ask, bound=bound + BACKSTOP).completed

    def _read(self, name: str) -> str | None:
        path = self.folder / name
        return path.read_text() if path.exists() else None

    def _write(self, name: str, line: str) -> None:
        """Whole or not at all: others may read it at any moment; the first one counts."""
        if not (path := self.folder / name).exists():
            part = self.folder / f"{name}.{random.SystemRandom().getrandbits(64)}"
            part.write_text(line)
            part.replace(path)
