"""The command line."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

TARGET_VARIABLE = "PDSERVE_TARGET"


def add_options(parser: pytest.Parser) -> None:
    """Add the group `pdserve`."""
    group = parser.getgroup("pdserve", "acceptance of prefill-decode deployments")
    group.addoption(
        "--pd-target",
        metavar="TARGET",
        help="the deployment to test: sim (a simulated one), host (router at port 30001, prefill 30000, decode "
        f"30002), host:port, URL, or a name in pdserve.toml. Also by the environment variable {TARGET_VARIABLE}.",
    )
    group.addoption(
        "--pd-config",
        metavar="FILE",
        help="pdserve.toml to read, instead of the first one found upwards from here.",
    )
    group.addoption(
        "--pd-depth",
        choices=("quick", "standard", "deep"),
        default="standard",
        help="how far to go; each depth includes the ones before it (default: standard).",
    )
    group.addoption(
        "--pd-disruptive",
        action="store_true",
        help="also run probes that may disturb other users of the deployment.",
    )
    group.addoption(
        "--pd-wait",
        type=float,
        metavar="SECONDS",
        default=0.0,
        help="first wait until every service is ready, for so long at most (default: don't wait).",
    )
    group.addoption(
        "--pd-keep-going",
        action="store_true",
        help="run the remaining probes also when the deployment answers nobody any more.",
    )
    group.addoption(
        "--pd-max-concurrency",
        type=int,
        metavar="N",
        help="most requests at once (default: pdserve.toml's limit; else 32, and no limit at depth deep and for sim).",
    )
    group.addoption(
        "--pd-inconclusive",
        choices=("fail", "pass"),
        default="fail",
        help="exit code of an inconclusive run: fail is 6, pass is 0 (default: fail).",
    )
    group.addoption(
        "--pd-with-suites",
        action="store_true",
        help="run the bundled suites as well when paths are given (without paths they always run).",
    )
    group.addoption(
        "--pd-reports",
        metavar="FOLDER",
        default="reports",
        help="where the run's report goes: FOLDER/<target>/<UTC time>/ (default: reports).",
    )
    group.addoption(
        "--pd-sim",
        metavar="ARGS",
        default="",
        help="for the target sim: arguments as `python -m pytest_pdserve.sim` takes them, in one word, such as "
        "--pd-sim='--fault series --time-scale 0.01'.",
    )


def target_of(config: pytest.Config) -> str | None:
    """The target that was named, by option or by the environment; None when there is none."""
    target: str | None = config.getoption("--pd-target")
    return target if target is not None else os.environ.get(TARGET_VARIABLE) or None
