"""The engines: a prefill queue and a continuously batched decode, driven by a clock instead of a GPU."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from pytest_pdserve.sim import kv
from pytest_pdserve.sim.answer import Answer
from pytest_pdserve.sim.ask import Ask, AskError, Trouble
from pytest_pdserve.sim.cache import PrefixCache
from pytest_pdserve.sim.faults import Work
from pytest_pdserve.sim.output import Output
from pytest_pdserve.sim.pool import Lease, Pool
from pytest_pdserve.sim.tally import KV_BYTES_PER_TOKEN, Seat, Stage, Tally, seated
from pytest_pdserve.sim.tokens import Detokenizer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from pytest_pdserve.sim.faults import Strikes, Switchboard
    from pytest_pdserve.sim.model import Model
    from pytest_pdserve.sim.plan import Plan


class _Engine:
    """What both engines share."""

    def __init__(self, plan: Plan, model: Model, faults: Switchboard, tally: Tally) -> None:
        self.tally = tally
        self._faults = faults
        self._plan = plan
        self._timing = plan.timing
        self._model = model
        self._wake = asyncio.Event()
        self._first = True
        self._pool = Pool(tally, plan.kv_tokens)
        self._cache = PrefixCache(plan.page_tokens, plan.kv_tokens)

    def _finished(self, ask: Ask, output_tokens: int, *, began: float, started: float, first: float) -> None:
        """Count a request that is done."""
        tally, prompt_tokens = self.tally, len(ask.prompt)
        tally.requests += 1
        tally.finished_prompt_tokens += prompt_tokens
        tally.finished_output_tokens += output_tokens
        tally.times.done(
            began=began,
            started=started,
            first=first,
            ended=time.monotonic(),
            prompt=prompt_tokens,
            output=output_tokens,
        )

    def _first_token(self, ask: Ask, *, talkative: bool) -> bytes:
        """The token that whoever computes the prompt makes."""
        return next(self._model.generate(ask.prompt, talkative=talkative, guide=ask.guide))

    async def _work(self, seconds: float) -> None:
        """Let simulated time pass; the first work after a start also sets the engine up."""
        if self._first:
            self._first = False
            seconds += self._timing.first_request_s
        await asyncio.sleep(seconds * self._plan.time_scale)


@dataclass(slots=True)
class _Prompt:
    ask: Ask
    seat: Seat
    cached_tokens: int = 0
    computed: asyncio.Event = field(default_factory=asyncio.Event)


class PrefillEngine(_Engine):
    """Computes prompts one after another in chunks and hands each over to whoever claims its room."""

    def __init__(self, plan: Plan, model: Model, faults: Switchboard, tally: Tally) -> None:
        super().__init__(plan, model, faults, tally)
        self._timeout_s = plan.timeout(plan.timing.bootstrap_timeout_s)
        self.depot = kv.Depot(self._transfer_s, self._timeout_s)
        self._queue: deque[_Prompt] = deque()
        self._held: set[asyncio.Task[None]] = set()
        self._rooms = itertools.count(1)

    def _transfer_s(self, tokens: int) -> float:
        seconds = self._timing.transfer_latency_s + tokens / self._timing.transfer_tokens_per_s
        return seconds * self._plan.time_scale * self._faults.pace(Work.TRANSFER)

    async def prefill(self, ask: Ask, strikes: Strikes) -> Output:
        """Compute a prompt and hand its KV over. Returns when decode has it.

        Raises AskError.
        """
        assert ask.source is not None
        number = ask.source.room
        async with self.depot.room(number) as room:
            with seated(self.tally) as seat:
                began = time.monotonic()
                seat.move(Stage.BOOTSTRAP)
                await strikes.before_bootstrap()
                await self._claimed(room, number)
                room.met.set()
                self.tally.times.bootstrap.observe(time.monotonic() - began)
                seat.move(Stage.WAITING)
                async with self._pool.lease(len(ask.prompt)):
                    started = time.monotonic()
                    cached = await self._compute(ask, seat)
                    computed = time.monotonic()
                    seat.move(Stage.INFLIGHT)
                    await strikes.before_transfer()
                    only = await self._hand_over(room, number, ask, cached)
                self.tally.times.moved(time.monotonic() - computed, len(ask.prompt) * KV_BYTES_PER_TOKEN)
                self._finished(ask, 1, began=began, started=started, first=computed)
                return only

    async def _compute(self, ask: Ask, seat: Seat) -> int:
        """Have a prompt computed; returns how many of its tokens were cached."""
        prompt = _Prompt(ask, seat)
        self._queue.append(prompt)
        self._wake.set()
        try:
            await prompt.computed.wait()
        finally:
            if prompt in self._queue:
                self._queue.remove(prompt)
        self.tally.prompt_tokens += len(ask.prompt)
        self.tally.cached_tokens += prompt.cached_tokens
        self.tally.computed_tokens += len(ask.prompt) - prompt.cached_tokens
        return prompt.cached_tokens

    async def hold(self, ask: Ask, strikes: Strikes) -> tuple[list[Output], int]:
        """vLLM's way: compute a prompt, answer with its room, and keep the KV there until it is fetched.

        Where several answers are asked for, each has a room of its own; the numbers of the rooms follow one another.
        """
        numbers = [next(self._rooms) for _ in range(ask.n)]
        return [
            await self._hold(ask.choice(index), strikes, number) for index, number in enumerate(numbers)
        ], numbers[0]

    async def _hold(self, ask: Ask, strikes: Strikes, number: int) -> Output:
        async with AsyncExitStack() as stack:
            began = time.monotonic()
            with seated(self.tally) as seat:
                await strikes.before_bootstrap()
                seat.move(Stage.WAITING)
                await stack.enter_async_context(self._pool.lease(len(ask.prompt)))
                started = time.monotonic()
                cached = await self._compute(ask, seat)
            kept = stack.pop_all()
        first = self._first_token(ask, talkative=True)
        self.tally.output_tokens += 1
        self._finished(ask, 1, began=began, started=started, first=time.monotonic())
        held = asyncio.create_task(self._keep(number, ask, first, strikes, kept))
        self._held.add(held)
        held.add_done_callback(self._held.discard)
        return _only(ask, first, cached)

    async def _keep(
        self, number: int, ask: Ask, first: bytes, strikes: Strikes, kept: AsyncExitStack
    ) -> None:
        async with kept, self.depot.room(number) as room:
            room.met.set()
            await strikes.before_transfer()
            # what prefill found in its cache is prefill's affair: vLLM's decode tells of its own cache only
            room.offer.set_result(kv.Handoff(kv.paged(ask.prompt), first, cached_tokens=0))
            try:
                await asyncio.wait_for(
                    asyncio.shield(room.outcome), self._plan.timeout(self._timing.kv_hold_s)
                )
            except TimeoutError:
                self.tally.expired += 1
            except kv.TransferError:
                self.tally.transfer_failed += 1

    async def _claimed(self, room: kv.Room, number: int) -> None:
        try:
            await asyncio.wait_for(room.claimed.wait(), self._timeout_s)
        except TimeoutError:
            self.tally.bootstrap_failed += 1
            raise AskError(
                Trouble.TRANSFER,
                f"Prefill bootstrap failed for request bootstrap_room={number}: "
                f"timed out after {self._timeout_s:g}s in KVPoll.Bootstrapping",
            ) from None

    async def _hand_over(self, room: kv.Room, number: int, ask: Ask, cached: int) -> Output:
        first = self._first_token(ask, talkative=ask.max_tokens is not None)
        room.offer.set_result(kv.Handoff(kv.paged(ask.prompt), first, cached))
        try:
            await asyncio.wait_for(asyncio.shield(room.outcome), self._timeout_s)
        except (kv.TransferError, TimeoutError) as error:
            self.tally.transfer_failed += 1
            raise AskError(
                Trouble.TRANSFER,
                f"Prefill transfer failed for request bootstrap_room={number}: "
                f"KVTransferError(bootstrap_room={number}): {error}",
            ) from None
        return _only(ask, first, cached)

    async def run(self) -> None:
        """The scheduler: never returns."""
        timing = self._timing
        while True:
            await self._wake.wait()
            while self._queue:
                prompt = self._queue.popleft()
                prompt.seat.move(Stage.RUNNING)
                prompt.cached_tokens = self._cache.match(prompt.ask.prompt)
                left = len(prompt.ask.prompt) - prompt.cached_tokens
                while left > 0:
                    chunk = min(left, timing.prefill_chunk_tokens)
                    seconds = timing.prefill_overhead_s + chunk / timing.prefill_tokens_per_s
                    await self._work(seconds * self._faults.pace(Work.PREFILL))
                    left -= chunk
                self._cache.keep(prompt.ask.prompt)
                prompt.computed.set()
            self._wake.clear()


class DecodeEngine(_Engine):
    """Takes KV over from a prefill and continues it, all running requests one token a step."""

    def __init__(self, plan: Plan, model: Model, faults: Switchboard, tally: Tally) -> None:
        super().__init__(plan, model, faults, tally)
        self._timeout_s = plan.timeout(plan.timing.bootstrap_timeout_s)
        self._arrived: deque[Answer] = deque()
        self._batch: list[Answer] = []
        self._retracted: deque[Answer] = deque()

    async def decode(self, ask: Ask, strikes: Strikes) -> AsyncGenerator[Output, None]:
        """Yield an answer step by step, the first after the KV has come over.

        Raises AskError.
        """
        began = time.monotonic()
        with seated(self.tally) as seat:
            seat.move(Stage.PREALLOC)
            async with self._pool.lease(len(ask.prompt)) as lease:
                await strikes.before_pull()
                handoff = await (self._alone(ask, seat) if ask.source is None else self._pull(ask, seat))
                if strikes.recomputes:
                    handoff = await self._alone(ask, seat)
                arrived = first = time.monotonic()
                await strikes.before_first_token()
                answer = self._begin(ask, handoff, seat, lease, strikes)
                try:
                    while True:
                        output = await answer.outputs.get()
                        if output.output_tokens == 1:
                            first = time.monotonic()
                        yield output
                        if output.finish is not None:
                            break
                finally:
                    if self._end(answer):
                        self._finished(ask, answer.count, began=began, started=arrived, first=first)
                    else:
                        lease.leaked = strikes.leak

    async def _alone(self, ask: Ask, seat: Seat) -> kv.Handoff:
        """Compute the prompt here, as a vLLM worker does with a request that brings no KV."""
        seat.move(Stage.RUNNING)
        cached = self._cache.match(ask.prompt)
        computed = len(ask.prompt) - cached
        await self._work(self._timing.prefill_overhead_s + computed / self._timing.prefill_tokens_per_s)
        self._cache.keep(ask.prompt)
        self.tally.computed_tokens += computed
        first = self._first_token(ask, talkative=ask.max_tokens is not None)
        return kv.Handoff(kv.paged(ask.prompt), first, cached)

    async def _pull(self, ask: Ask, seat: Seat) -> kv.Handoff:
        assert ask.source is not None
        met = time.monotonic()

        def begin() -> None:
            nonlocal met
            met = time.monotonic()
            seat.move(Stage.TRANSFER)

        try:
            handoff = await kv.pull(*ask.source, self._timeout_s, met=begin)
        except kv.TransferError as error:
            self.tally.transfer_failed += 1
            raise AskError(
                Trouble.TRANSFER,
                f"Decode transfer failed for request bootstrap_room={ask.source.room}: "
                f"KVTransferError(bootstrap_room={ask.source.room}): {error}",
            ) from None
        self.tally.times.moved(time.monotonic() - met, len(ask.prompt) * KV_BYTES_PER_TOKEN)
        return handoff

    def _begin(self, ask: Ask, handoff: kv.Handoff, seat: Seat, lease: Lease, strikes: Strikes) -> Answer:
        arrived = handoff.context
        context = strikes.context(arrived)
        again = partial(self._model.generate, talkative=ask.max_tokens is not None, guide=ask.guide)
        tokens = again(context)
        if context == arrived:
            tokens = _handed_on(handoff.first, tokens)
        answer = Answer(
            ask=ask,
            tokens=strikes.tokens(tokens, context, again),
            cached_tokens=handoff.cached_tokens,
            limit=ask.max_tokens or self._plan.context_tokens - len(ask.prompt),
            detokenizer=Detokenizer(ask.stops),
            seat=seat,
            lease=lease,
        )
        self.tally.prompt_tokens += len(ask.prompt)
        self.tally.cached_tokens += handoff.cached_tokens
        seat.move(Stage.WAITING)
        self._arrived.append(answer)
        self._wake.set()
        return answer

    def _end(self, answer: Answer) -> bool:
        """Take an answer out, whole or not; tells which."""
        self._wake.set()  # what it held may let a retracted one go on
        for queue in (self._batch, self._arrived, self._retracted):
            if answer in queue:
                queue.remove(answer)
                self.tally.aborted += 1
                return False
        self.tally.stopped += answer.stopped
        return True

    def _fill(self) -> bool:
        """Put into the batch what has arrived, as far as the KV reaches; tells whether anything runs."""
        while self._retracted and self._room_again(self._retracted[0]):
            self._run(self._retracted.popleft())
        while self._arrived:
            self._run(self._arrived.popleft())
        while self._batch and not self._pool.fits(len(self._batch)):
            self._retract(self._batch.pop())
        return bool(self._batch)

    def _room_again(self, answer: Answer) -> bool:
        """Whether a retracted answer fits, with some way to go so that it is not retracted at once again."""
        spare = kv.PAGE_TOKENS * len(self._batch) + 1
        return self._pool.fits(len(answer.ask.prompt) + answer.count + spare)

    def _run(self, answer: Answer) -> None:
        answer.lease.resize(len(answer.ask.prompt) + answer.count)
        answer.seat.move(Stage.RUNNING)
        self._batch.append(answer)

    def _retract(self, answer: Answer) -> None:
        """Give the newest answer's KV up until there is room for it again."""
        answer.lease.resize(0)
        answer.seat.move(Stage.RETRACTED)
        self.tally.retractions += 1
        self._retracted.append(answer)

    async def run(self) -> None:
        """The scheduler: never returns."""
        timing = self._timing
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._fill():
                size = len(self._batch)
                await self._work(timing.step_s(size) * self._faults.pace(Work.DECODE, size))
                self.tally.output_tokens += sum(answer.step() for answer in self._batch)
                self._batch = [answer for answer in self._batch if not answer.ended]


def _only(ask: Ask, first: bytes, cached: int) -> Output:
    """What a prefill answers: its one token."""
    tokens = () if ask.top_logprobs is None else (first,)
    return Output(Detokenizer().feed(first), 1, cached, finish="length", index=ask.index, tokens=tokens)


def _handed_on(first: bytes, tokens: Iterator[bytes]) -> Iterator[bytes]:
    """An answer whose first token is the one prefill made."""
    next(tokens)
    yield first
    yield from tokens
