"""Faults of content: status 200, in time, and wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pytest_pdserve.sim.faults.base import Call, Fault
from pytest_pdserve.sim.kv import PAGE_TOKENS
from pytest_pdserve.sim.plan import Role
from pytest_pdserve.sim.tokens import forget_turns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_NOISE = b" ~"


class ContextLost(Fault):
    """Stale KV: the newest turns are not in it, so an older message is answered."""

    name = "context-lost"
    about = "from the user message after TURNS on, only the first TURNS user messages are seen"
    report = "mlx-serve#492 (answers the first message), sgl-project/sglang#24230 (wrong text on turn 2)"
    arguments = "TURNS"
    defaults: ClassVar = (1.0,)

    def context(self, pieces: list[bytes], call: Call, nth: int) -> list[bytes]:
        """Forget the later turns."""
        return forget_turns(pieces, int(self.numbers[0]))


class StalePrefix(Fault):
    """A prefix-cache hit returns all of another request's KV."""

    name = "stale-prefix"
    about = "a prompt whose first TOKENS tokens were seen before gets the earlier prompt's answer"
    report = "vllm-project/vllm#53706, mlx-serve#492 (wrong reuse on a prefix hit)"
    arguments = "TOKENS"
    defaults: ClassVar = (6.0,)

    def __init__(self, *given: object, **more: object) -> None:
        super().__init__(*given, **more)  # type: ignore[arg-type]
        self._seen: dict[bytes, list[bytes]] = {}

    def context(self, pieces: list[bytes], call: Call, nth: int) -> list[bytes]:
        """The first context that began like this one."""
        return self._seen.setdefault(b"".join(pieces[: int(self.numbers[0])]), pieces)


class KvCorrupt(Fault):
    """Pages of long prompts arrive damaged."""

    name = "kv-corrupt"
    about = "every second page of prompts longer than TOKENS tokens arrives as noise"
    report = "vllm-project/vllm#44238, sgl-project/sglang#19398 (200 with wrong text)"
    arguments = "TOKENS"
    defaults: ClassVar = (256.0,)

    def context(self, pieces: list[bytes], call: Call, nth: int) -> list[bytes]:
        """Turn pages into noise, but for the last one."""
        if len(pieces) <= self.numbers[0]:
            return pieces
        last = len(pieces) - PAGE_TOKENS
        damaged = [at < last and (at // PAGE_TOKENS) % 2 == 0 and at > 0 for at in range(len(pieces))]
        return [_NOISE if bad else piece for piece, bad in zip(pieces, damaged, strict=True)]


class NeedleLost(Fault):
    """What stands deep in a long prompt is not there."""

    name = "needle-lost"
    about = "what stands more than TOKENS tokens before a prompt's end is lost"
    report = "vllm-project/vllm#52617 (long prompts), sgl-project/sglang#6320 (beyond a chunk's size)"
    arguments = "TOKENS"
    defaults: ClassVar = (512.0,)

    def context(self, pieces: list[bytes], call: Call, nth: int) -> list[bytes]:
        """Noise, but for the beginning's role mark."""
        lost = max(0, len(pieces) - int(self.numbers[0]))
        return pieces[:1] + [_NOISE] * (lost - 1) + pieces[lost:] if lost else pieces


class CrossTalk(Fault):
    """An answer is made from another request's context."""

    name = "cross-talk"
    about = "with `above=N`, a request among more than N at once gets the answer of the one before it"
    report = "sgl-project/sglang#22716, #17259, #30233 (another user's text)"

    def __init__(self, *given: object, **more: object) -> None:
        super().__init__(*given, **more)  # type: ignore[arg-type]
        self._before: list[bytes] | None = None

    def tokens(
        self, tokens: Iterator[bytes], pieces: list[bytes], again: Callable[[list[bytes]], Iterator[bytes]]
    ) -> Iterator[bytes]:
        """The answer to the struck request before this one."""
        before, self._before = self._before, pieces
        return tokens if before is None else again(before)


class HealthLies(Fault):
    """/health says the opposite."""

    name = "health-lies"
    about = "/health answers 503 while all is well (1), or 200 while every request hangs (0)"
    report = "sgl-project/sglang#22511 (503 while busy), #6624 (200 an hour after a crash)"
    roles = (Role.DECODE, Role.PREFILL)
    arguments = "WELL"
    defaults: ClassVar = (1.0,)

    def health(self, status: int) -> int:
        """The lie."""
        return 503 if self.numbers[0] else 200

    async def before_answer(self, call: Call, nth: int) -> None:
        """Hang, when all is not well."""
        if not self.numbers[0]:
            await self.stall(float("inf"))
