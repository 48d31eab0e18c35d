"""Each role answers, and all of them serve the model under test.

A green answer here proves nothing about the path; a red one is worth knowing before anything else is tried.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_pdserve.deployment import ProbeFailure
from pytest_pdserve.judge import Finding

if TYPE_CHECKING:
    from pytest_pdserve.deployment import Deployment
    from pytest_pdserve.target import Service


def test_service_answers(pd: Deployment, pd_service: Service) -> None:
    """Each service answers a question that makes it compute nothing, within 5 s."""
    state = pd.state(pd_service)
    if not state.ready:
        raise ProbeFailure(
            Finding(
                what=f"{pd_service.name} is not ready: {state.problem}",
                evidence=(f"asked at {pd_service.url}{state.path}",),
                replay=f"curl -sS -m 5 {pd_service.url}{state.path}",
            )
        )


def test_services_serve_the_same_model(pd: Deployment) -> None:
    """Every service that lists models lists the one under test (a worker restarted with another model doesn't)."""
    if pd.target.unreachable:
        pytest.skip(pd.target.unreachable)
    if pd.model is None:
        raise ProbeFailure(Finding(what="the deployment offers no model", evidence=pd.target.notes))
    listed = {service.name: pd.models(service) for service in pd.services}
    lists = {name: models for name, models in listed.items() if not isinstance(models, str)}
    if len(lists) < 2:
        pytest.skip(f"{len(lists)} of {len(listed)} services list their models: there is nothing to compare")
    other = {name: models for name, models in lists.items() if pd.model not in models}
    if other:
        raise ProbeFailure(
            Finding(
                what=f'{", ".join(other)} does not serve "{pd.model}"',
                evidence=tuple(
                    f"{name} lists {', '.join(models) or 'nothing'}" for name, models in lists.items()
                ),
            )
        )
