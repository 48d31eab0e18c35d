"""The public surface for probes: the fixtures."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from pytest_pdserve.deployment import Deployment
    from pytest_pdserve.run import Run
    from pytest_pdserve.target import Service

RUN: pytest.StashKey[Run] = pytest.StashKey()
"""In the stash of the config: what the probes of this process share; absent without a target."""
DEPLOYMENT: pytest.StashKey[Deployment] = pytest.StashKey()
"""In the stash of an item: the deployment as this probe sees it."""


@pytest.fixture
def pd(request: pytest.FixtureRequest) -> Deployment:
    """The deployment under test.

    `pd.chat("hi")` asks once and returns a whole answer (`Reply`), or fails the test with what was measured
    instead; `pd.attempt` returns whatever came; `pd.together` asks many in the same moment. `pd.replies` are all
    replies of this test: the limits of the mark `latency_budget` and of the settings are judged over them when
    the test ends. `pd.services` and `pd.model` say what is under test. Without --pd-target the test is skipped.
    """
    run = request.config.stash.get(RUN, None)
    if run is None:
        _skip_without_target()
    deployment = run.deployment(request.node)
    request.node.stash[DEPLOYMENT] = deployment
    return deployment


@pytest.fixture
def pd_http(request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    """An `httpx.Client` whose base URL is the entry: for anything that isn't a chat.

    It sends over the same transport as the probes: proxies of the environment are not used, redirects not
    followed, nothing is retried; the target's key and headers go along where its settings allow.
    """
    run = request.config.stash.get(RUN, None)
    if run is None:
        _skip_without_target()
    with run.plain_client() as client:
        yield client


@pytest.fixture
def pd_service(request: pytest.FixtureRequest) -> Service:
    """One service of the target; a test that asks for it runs once for each."""
    if request.config.stash.get(RUN, None) is None:
        _skip_without_target()
    service: Service = request.param
    return service


def _skip_without_target() -> NoReturn:
    pytest.skip("needs a deployment: --pd-target")
