"""One answer of a decode engine, made a token a step."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_pdserve.sim.faults.base import HOLD
from pytest_pdserve.sim.output import Output
from pytest_pdserve.sim.tokens import EOS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_pdserve.sim.ask import Ask
    from pytest_pdserve.sim.pool import Lease
    from pytest_pdserve.sim.tally import Seat
    from pytest_pdserve.sim.tokens import Detokenizer


@dataclass(slots=True)
class Answer:
    """One answer under way in the decode batch."""

    ask: Ask
    tokens: Iterator[bytes]
    cached_tokens: int
    limit: int
    detokenizer: Detokenizer
    seat: Seat
    lease: Lease
    outputs: asyncio.Queue[Output] = field(default_factory=asyncio.Queue)
    count: int = 0
    token: bytes = b""
    ended: bool = False
    stopped: bool = False

    def step(self) -> int:
        """Take one step: 1 when it made a token, 0 when a fault holds it back."""
        piece = next(self.tokens)
        if piece == HOLD:
            return 0
        ask = self.ask
        self.count += 1
        self.token = piece
        self.lease.resize(self.lease.tokens + 1)
        if piece == EOS and not ask.ignore_eos and self.count >= ask.min_tokens:
            self._put(self.detokenizer.finish(), "stop", "")
            return 1
        text = self.detokenizer.feed(piece)
        if self.detokenizer.matched is not None:
            self._put(text, "stop", self.detokenizer.matched)
        elif self.count >= self.limit:
            self._put(text + self.detokenizer.finish(), "length", None)
        else:
            self._put(text, None, None)
        return 1

    def _put(self, text: str, finish: str | None, matched: str | None) -> None:
        ask = self.ask
        tokens = () if ask.top_logprobs is None else (self.token,)
        self.outputs.put_nowait(
            Output(text, self.count, self.cached_tokens, finish, matched, ask.index, tokens)
        )
        if finish is not None:
            self.ended = True
            self.stopped = finish == "stop"
            self.seat.move(None)
