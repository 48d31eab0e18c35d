"""Deployments on scripted servers, with one loop thread for all."""

from __future__ import annotations

import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import SecretStr

from pytest_pdserve.chat import ChatClient, http_client
from pytest_pdserve.deployment import Deployment
from pytest_pdserve.evidence import Surroundings
from pytest_pdserve.judge import LatencyBudget
from pytest_pdserve.observe import Observer
from pytest_pdserve.settings import Credential
from pytest_pdserve.target import Role, Service, Target
from pytest_pdserve.wire import LoopThread
from tests.chat.llm_server import LlmServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from tests.chat.llm_server import Script

KEY = "sk-Xq7Lm2Vw9Rt4Zp"


class SeesNothing(Observer):
    """Sends no canaries: here the scripted server is asked only by the test."""

    async def surroundings(self, failed: Any = None, **how: bool) -> Surroundings:
        return Surroundings(usual=self.usual)


@pytest.fixture(scope="session")
def loop() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.close()


@pytest.fixture
def deploy(loop: LoopThread) -> Callable[..., AbstractContextManager[tuple[Deployment, LlmServer]]]:
    """`with deploy(script, **fields) as (pd, server)`: a deployment whose entry answers as `script` says."""

    @contextmanager
    def deployed(script: Script, **fields: Any) -> Iterator[tuple[Deployment, LlmServer]]:
        with LlmServer(script) as server:
            router = Service(role=Role.ROUTER, url=server.url, name="router", declared=True)
            target = Target(name="t", entry=server.url, services=(router,), engine="openai", model="m")
            credential = Credential(api_key=SecretStr(KEY), variable="KEY", entry=server.url)
            http = http_client(credential)
            observer = SeesNothing(target, http, credential)
            client = ChatClient(target, credential=credential, http=http)
            pd = Deployment(
                **{
                    "target": target,
                    "client": client,
                    "loop": loop,
                    "observer": observer,
                    "source": random.Random(1),
                    "budget": LatencyBudget(),
                    "time_left": 20.0,
                    **fields,
                }
            )
            try:
                yield pd, server
            finally:
                loop.run(http.aclose, bound=10)

    return deployed
