"""What the probes of one process share: the target, the clients, the loop thread, what was calibrated."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import httpx

from pytest_pdserve.capabilities import Capabilities, CapabilityUnknown
from pytest_pdserve.chat import ChatClient, http_client
from pytest_pdserve.deployment import Deployment, NotRun, exchange_time
from pytest_pdserve.gate import Gate
from pytest_pdserve.judge import LatencyBudget
from pytest_pdserve.load import Sends
from pytest_pdserve.markers import Depth, read_mark
from pytest_pdserve.observe import Observer
from pytest_pdserve.wire import BridgeTransport, LoopThread, Outcome, Transport, tls_context

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import pytest

    from pytest_pdserve.chat import ChatRequest, Message
    from pytest_pdserve.evidence import Surroundings
    from pytest_pdserve.settings import Settings
    from pytest_pdserve.target import Target
    from pytest_pdserve.wire import Exchange

CALIBRATION = 60.0
"""Seconds that trying out one capability may take, before the probe's own time begins."""
CLOSING = 5.0


@dataclass(slots=True, kw_only=True)
class Run:
    """One process's share of a run."""

    settings: Settings
    target: Target
    depth: Depth
    disruptive: bool
    max_concurrency: int | None
    seed: int
    folder: Path
    """Where the processes of this run leave what the others have to know; emptied when it ends."""
    keep_going: bool = False
    """Whether probes run also when the deployment is wedged."""
    loop: LoopThread = field(default_factory=LoopThread)
    capabilities: Capabilities = field(default_factory=Capabilities)
    _transport: Transport = field(init=False)
    _client: ChatClient = field(init=False)
    observer: Observer = field(init=False)
    gate: Gate = field(init=False)

    def __post_init__(self) -> None:
        self._transport = transport(self.settings)
        http = http_client(self.settings.credential, self._transport)
        self.observer = Observer(
            self.target, http, self.settings.credential, longest=self.settings.limits.deadline
        )
        self._client = ChatClient(
            self.target,
            credential=self.settings.credential,
            http=http,
            look_around=self._look_around,
        )
        quiet = ChatClient(self.target, credential=self.settings.credential, http=http)
        self.gate = Gate(client=quiet, loop=self.loop, observer=self.observer, folder=self.folder)

    async def _look_around(self, request: ChatRequest, hung: Exchange) -> Surroundings:
        reused = hung.timeline.reused
        return await self.observer.surroundings(request, reused=reused, still_open=True)

    def deployment(self, item: pytest.Function) -> Deployment:
        """The deployment as `item` may use it."""
        return Deployment(
            target=self.target,
            client=self._client,
            loop=self.loop,
            observer=self.observer,
            source=random.Random(f"{self.seed} {item.nodeid}"),  # noqa: S311 -- codes, not secrets
            budget=self._budget(item),
            time_left=exchange_time(_timeout(item)),
            longest_wait=self.settings.limits.deadline,
            allowance=allowance(item),
            most_at_once=self.max_concurrency,
        )

    def require(self, names: Sequence[str], deployment: Deployment) -> None:
        """Try the capabilities `names` that nobody has tried yet, on this probe's behalf but not on its time.

        Raises CapabilityMissing, NotRun when an earlier trial failed, and what a probe raises when this one does.
        """
        if not names:
            return
        trial = replace(
            deployment,
            budget=LatencyBudget(),
            time_left=CALIBRATION,
            allowance=None,
            replies=[],
            sent=Sends(),
            began=time.monotonic(),
        )

        def ask(messages: Sequence[Message], way: Mapping[str, Any]) -> str:
            reply = trial.attempt(messages, **way)
            if reply.outcome is Outcome.REFUSED and "extra" in way:
                # A strict server may not know the parameter: then this is not the way to ask.
                return ""
            return trial.whole(reply).text

        try:
            self.capabilities.require(names, ask, trial.source)
        except CapabilityUnknown as unknown:
            raise NotRun(str(unknown)) from None
        finally:
            deployment.began = time.monotonic()
        deployment.copy_way = self.capabilities.copy_way or deployment.copy_way

    def plain_client(self) -> httpx.Client:
        """A synchronous httpx client for the entry, over our transport."""
        credential = self.settings.credential

        def add_credential(request: httpx.Request) -> None:
            for name, value in credential.headers_for(str(request.url)).items():
                request.headers.setdefault(name, value)

        return httpx.Client(
            base_url=self.target.entry,
            transport=BridgeTransport(transport(self.settings), self.loop),
            trust_env=False,
            timeout=self.settings.limits.deadline or 30.0,
            event_hooks={"request": [add_credential]},
        )

    def close(self) -> None:
        """Close all connections and end the loop thread."""
        self.loop.run(self._transport.aclose, bound=CLOSING)
        self.loop.close()

    def _budget(self, item: pytest.Function) -> LatencyBudget:
        own: LatencyBudget = read_mark(item, "latency_budget") or LatencyBudget()
        return own.or_else(budget_of(self.settings))


def transport(settings: Settings) -> Transport:
    """A transport with the target's TLS files. Raises ValueError, one line, when one of them is of no use."""
    files = settings.tls
    if files.ca is None and files.certificate is None:
        return Transport()
    return Transport(ssl_context=tls_context(ca=files.ca, certificate=files.certificate, key=files.key))


def budget_of(settings: Settings) -> LatencyBudget:
    """The target's own limits, for every probe that doesn't set others."""
    limits = settings.budgets
    return LatencyBudget(
        ttft=limits.ttft, second_token=limits.second_token, itl_p99=limits.itl_p99, e2e=limits.e2e
    )


def allowance(item: pytest.Function) -> Sends | None:
    """What the marks of `item` say that it sends at most; None if they don't."""
    sends: Sends | None = read_mark(item, "sends")
    if sends is None:
        return None
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    return sends.at_level(int(str(parameters.get("level", 1))))


def _timeout(item: pytest.Function) -> float:
    mark = item.get_closest_marker("timeout")
    if mark is None:
        raise ValueError(f"{item.nodeid} has no time-out")
    return float(mark.args[0] if mark.args else mark.kwargs["timeout"])
