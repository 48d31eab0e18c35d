"""A simulated deployment for the tests of the simulator itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_pdserve.sim.launch import Simulation, start

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def sim() -> Iterator[Simulation]:
    """A sound deployment, one for each test module; who sets faults must take them away again."""
    with start() as simulation:
        yield simulation
