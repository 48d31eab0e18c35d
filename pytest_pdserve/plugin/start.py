"""Which parts of the plugin a process needs: the controller's, the prober's, or both when they are one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest

from pytest_pdserve.markers import Depth, marker_lines
from pytest_pdserve.plugin.collection import Collection, use_bundled_suites
from pytest_pdserve.plugin.controller import Controller
from pytest_pdserve.plugin.options import target_of
from pytest_pdserve.plugin.prober import Prober
from pytest_pdserve.run import Run
from pytest_pdserve.settings import Settings, SettingsError, load
from pytest_pdserve.target import Target

DEFAULT_AT_ONCE: Final = 32
"""So that nobody overloads a deployment in use by accident."""


def configure(config: pytest.Config) -> None:
    """Set this process up. Raises UsageError, one line, for what is wrong with options or settings."""
    for line in marker_lines():
        config.addinivalue_line("markers", line)
    if config.option.markers:
        return
    use_bundled_suites(config)
    handed_over = getattr(config, "workerinput", {}).get("pdserve")
    if handed_over is not None:
        settings = Settings.from_public(handed_over["settings"], os.environ)
        folder = Path(handed_over["hand_back"])
        run = _run(config, settings, Target.from_json(handed_over["target"]), handed_over["seed"], folder)
        _probe(config, run, folder / f"{handed_over['worker']}.json")
        return
    controller = Controller(config, _settings(config))
    config.pluginmanager.register(controller, "pdserve-controller")
    if config.getoption("dist", "no") == "no":
        # Probes run in this very process, as soon as the controller knows what there is to probe.
        controller.when_resolved = lambda settings, target: _probe(
            config, _run(config, settings, target, controller.seed, controller.hand_back), None
        )


def _settings(config: pytest.Config) -> Settings:
    wait = config.getoption("--pd-wait")
    if not (0 <= wait < float("inf")):
        raise pytest.UsageError(f"--pd-wait: has to be a number of seconds, not {wait:g}")
    at_once = config.getoption("--pd-max-concurrency")
    if at_once is not None and at_once < 1:
        raise pytest.UsageError(f"--pd-max-concurrency: has to be a whole number above 0, not {at_once}")
    named = config.getoption("--pd-config")
    try:
        return load(
            target_of(config) or "",
            config=Path(named) if named else None,
            folder=config.invocation_params.dir,
            environ=os.environ,
        )
    except SettingsError as problem:
        raise pytest.UsageError(f"--pd-target: {problem}") from None


def _run(config: pytest.Config, settings: Settings, target: Target, seed: int, folder: Path) -> Run:
    depth = Depth(config.getoption("--pd-depth"))
    limits = [settings.limits.max_concurrency, config.getoption("--pd-max-concurrency")]
    if settings.limits.max_concurrency is None and depth is not Depth.DEEP and not settings.simulated:
        limits.append(config.getoption("--pd-max-concurrency") or DEFAULT_AT_ONCE)
    return Run(
        settings=settings,
        target=target,
        depth=depth,
        disruptive=config.getoption("--pd-disruptive"),
        max_concurrency=min((limit for limit in limits if limit is not None), default=None),
        seed=seed,
        folder=folder,
        keep_going=config.getoption("--pd-keep-going"),
    )


def _probe(config: pytest.Config, run: Run, hand_back: Path | None) -> None:
    config.pluginmanager.register(Prober(config, run), "pdserve-prober")
    config.pluginmanager.register(Collection(config, run, hand_back), "pdserve-collection")
