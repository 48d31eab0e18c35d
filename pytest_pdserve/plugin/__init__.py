"""The pytest plugin: options and marks always, everything else only when there is a target."""

from __future__ import annotations

import pytest

from pytest_pdserve.plugin.options import add_options, target_of


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, in one group."""
    add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Register fixtures and marks; with a target, the parts that run probes and that collect what they found."""
    from pytest_pdserve import fixtures

    config.pluginmanager.register(fixtures, "pdserve-fixtures")
    if target_of(config) is None or config.option.help or config.option.version:
        _register_marks_by_name(config)
        return
    from pytest_pdserve.plugin import start

    start.configure(config)


def _register_marks_by_name(config: pytest.Config) -> None:
    """Names only: reading the marks' signatures would load the house, for a run that has no use for it."""
    for name in (
        "latency_budget",
        "multi_turn",
        "concurrency",
        "disruptive",
        "can_wedge",
        "settles",
        "needs",
        "depth",
        "sends",
    ):
        config.addinivalue_line("markers", f"{name}(...): see pytest --pd-target=sim --markers")
