"""Canaries: the same small request, one hop further in each, so that what answers can be told from what doesn't."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import urlsplit

import msgspec

from pytest_pdserve.chat import chat_request, read_reply
from pytest_pdserve.engines import ENGINES, Handoff
from pytest_pdserve.evidence import Hop, Through
from pytest_pdserve.target import Role
from pytest_pdserve.wire import Outcome, exchange

if TYPE_CHECKING:
    from collections.abc import Awaitable

    import httpx

    from pytest_pdserve.chat import ChatRequest, Reply
    from pytest_pdserve.settings import Credential
    from pytest_pdserve.target import Service, Target

OUTER: Final = 3
"""Canaries through the entry and the router each: a fault that strikes a share of requests may spare a single one."""
INNER: Final = 2
PAIRS: Final = 4
"""Pairs of a prefill and a decode that are asked directly at most."""
SMALL_PROMPT: Final = 1000
SMALL_ANSWER: Final = 64
"""Tokens up to which the failing request itself serves as a canary: some failures need its shape."""
_NOTHING = dict.fromkeys(("remote_engine_id", "remote_block_ids", "remote_host", "remote_port"))


class Bisector:
    """Sends canaries to the services of one target. Tiny requests only, each on its own deadline."""

    def __init__(self, target: Target, http: httpx.AsyncClient, credential: Credential) -> None:
        self._target = target
        self._engine = ENGINES[target.engine]
        self._http = http
        self._credential = credential

    async def bisect(self, failed: ChatRequest | None, *, reused: bool, bound: float) -> tuple[Hop, ...]:
        """All ways at the same time, each canary for at most `bound` seconds.

        `failed` is the request that something is wrong with; `reused` says that it went over a kept connection, so
        that one canary tries such a one, too.
        """
        if self._target.model is None:
            return ()
        request = self._canary(failed)
        kept = self._kept(request, bound) if reused else _nothing()
        ways: list[Awaitable[Hop]] = [self._to_entry(request, "fresh", bound) for _ in range(OUTER)]
        ways += [
            self._to(Through.ROUTER, service, request, bound)
            for service in self._target.of(Role.ROUTER)
            if service.url != self._target.entry
            for _ in range(OUTER)
        ]
        ways += self._inside(request, bound)
        hops, tried = await asyncio.gather(asyncio.gather(*ways), kept)
        return (*hops, *tried)

    def _canary(self, failed: ChatRequest | None) -> ChatRequest:
        small = failed is not None and (
            failed.most_prompt_tokens <= SMALL_PROMPT and 0 < failed.max_tokens <= SMALL_ANSWER
        )
        if failed is not None and small:
            return failed
        text = f"Say something about the number {random.SystemRandom().randrange(10**6)}."
        return chat_request(self._target.model or "", text, max_tokens=4, temperature=0.0, stream=True)

    def _inside(self, request: ChatRequest, bound: float) -> list[Awaitable[Hop]]:
        prefills, decodes = self._target.of(Role.PREFILL), self._target.of(Role.DECODE)
        pairs = [(prefill, decode) for prefill in prefills for decode in decodes][:PAIRS]
        ways: list[Awaitable[Hop]] = []
        if self._engine.handoff is Handoff.PARAMETERS:
            ways += [self._parameters(*pair, request, bound) for pair in pairs for _ in range(INNER)]
            ways += [
                self._to(Through.PREFILL, each, request, bound) for each in prefills[:1] for _ in range(INNER)
            ]
            ways += [
                self._to(Through.DECODE, each, request, bound) for each in decodes[:1] for _ in range(INNER)
            ]
        if self._engine.handoff is Handoff.ROOM:
            ways += [
                self._room(prefill, decode, request, bound)
                for prefill, decode in pairs
                if prefill.bootstrap_port is not None
                for _ in range(INNER)
            ]
        return ways

    async def _to_entry(
        self, request: ChatRequest, connection: Literal["fresh", "reuse"], bound: float
    ) -> Hop:
        reply = await self._ask(self._target.entry, request, bound, connection=connection)
        return _hop(Through.ENTRY, ("entry",), reply, bound, reused=reply.exchange.timeline.reused)

    async def _kept(self, request: ChatRequest, bound: float) -> tuple[Hop, ...]:
        """The second request on one connection, when the first one came through."""
        first = await self._to_entry(request, "fresh", bound)
        return (await self._to_entry(request, "reuse", bound),) if first.completed else ()

    async def _to(self, through: Through, service: Service, request: ChatRequest, bound: float) -> Hop:
        return _hop(through, (service.name,), await self._ask(service.url, request, bound), bound)

    async def _room(self, prefill: Service, decode: Service, request: ChatRequest, bound: float) -> Hop:
        """SGLang's way: both at once, in a room of their own."""
        room = {
            "bootstrap_host": urlsplit(prefill.url).hostname,
            "bootstrap_port": prefill.bootstrap_port,
            "bootstrap_room": random.SystemRandom().getrandbits(63),
        }
        joined = replace(request, body={**request.body, **room})
        first, answer = await asyncio.gather(
            self._ask(prefill.url, joined, bound), self._ask(decode.url, joined, bound)
        )
        done = first.exchange.outcome is Outcome.COMPLETED
        hop = _hop(Through.PAIR, (prefill.name, decode.name), answer, bound)
        return replace(hop, prefill_done=done)

    async def _parameters(self, prefill: Service, decode: Service, request: ChatRequest, bound: float) -> Hop:
        """vLLM's way: prefill first, and what it says of the KV goes to decode."""
        names = (prefill.name, decode.name)
        until = time.monotonic() + bound
        held = {"do_remote_decode": True, "do_remote_prefill": False, **_NOTHING}
        kept = {
            name: value
            for name, value in request.body.items()
            if name not in ("stream_options", "min_tokens")
        }
        body = {**kept, "stream": False, "max_tokens": 1, "kv_transfer_params": held}
        first = await self._ask(prefill.url, replace(request, body=body), bound)
        told = _transfer(first)
        if told is None:
            return replace(_hop(Through.PAIR, names, first, bound, why="prefill: "), prefill_done=False)
        onward = replace(request, body={**request.body, "kv_transfer_params": told})
        left = max(until - time.monotonic(), 0.0)
        answer = await self._ask(decode.url, onward, left)
        return replace(_hop(Through.PAIR, names, answer, bound), prefill_done=True)

    async def _ask(
        self,
        base: str,
        request: ChatRequest,
        bound: float,
        *,
        connection: Literal["fresh", "reuse"] = "fresh",
    ) -> Reply:
        url = base + request.path
        built = self._http.build_request(
            "POST",
            url,
            content=msgspec.json.encode(request.body),
            headers={"Content-Type": "application/json", "Accept-Encoding": "identity"},
        )
        raw = await exchange(self._http, built, deadline=bound, connection=connection)
        return read_reply(request, raw, mask=self._credential.mask)


async def _nothing() -> tuple[Hop, ...]:
    return ()


def _transfer(reply: Reply) -> dict[str, Any] | None:
    """What a prefill says of the KV that it keeps."""
    if reply.exchange.outcome is not Outcome.COMPLETED:
        return None
    try:
        told = msgspec.json.decode(bytes(reply.exchange.body.data), type=dict[str, Any])
    except msgspec.MsgspecError:
        return None
    found = told.get("kv_transfer_params")
    return found if isinstance(found, dict) else None


def _hop(
    through: Through,
    services: tuple[str, ...],
    reply: Reply,
    bound: float,
    *,
    reused: bool = False,
    why: str = "",
) -> Hop:
    return Hop(
        through=through,
        reused=reused,
        services=services,
        completed=reply.completed,
        hung=reply.outcome is Outcome.HUNG,
        seconds=reply.e2e if reply.e2e is not None else bound,
        reason="" if reply.completed else f"{why}{reply.reason}",
    )
