"""Which probes there are, in which order, each with its deadline; and what they send at most."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeGuard

import msgspec
import pytest

import pytest_pdserve
from pytest_pdserve.capabilities import CALIBRATION_SENDS
from pytest_pdserve.gate import CANARY_SENDS
from pytest_pdserve.judge import OWN_STAGE
from pytest_pdserve.load import Sends
from pytest_pdserve.markers import MARKS, Depth, read_mark
from pytest_pdserve.run import allowance

if TYPE_CHECKING:
    from pytest_pdserve.run import Run

STAGES: Final = {"health": 40.0, "correctness": 40.0, "sessions": 70.0, "stress": 70.0}
"""The bundled stages in the order in which they run, and the seconds that a probe of each may take by default."""
MANY: Final = 8
"""Requests at once from which a probe may wedge a deployment."""
OWN_SECONDS: Final = 70.0
"""Seconds that a user's probe may take if it doesn't say so itself, and nor does pytest-timeout's setting."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is going to do."""

    probes: int
    selection: str
    """"12 of 30 probes" when only some were selected; else empty."""
    sends: Sends
    silent: int
    """How many of the probes don't say what they send."""

    def __str__(self) -> str:
        at_most = (
            f"at most {self.sends.requests:,} requests, {_tokens(self.sends.prompt_tokens)} prompt + "
            f"{_tokens(self.sends.output_tokens)} output tokens, {self.sends.at_once} at once"
        )
        return at_most + (f"; and {self.silent} probes that state no limit" if self.silent else "")


def suites_folder() -> Path:
    """Where the bundled suites are: inside the installed package, or beside it in a checkout."""
    package = Path(pytest_pdserve.__file__).parent
    inside = package / "suites"
    return inside if inside.is_dir() else package.parent / "suites"


def use_bundled_suites(config: pytest.Config) -> None:
    """Collect the bundled suites when no paths were given, or when they were asked for as well."""
    above = str(suites_folder().parent)
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        # The folder above, so that ids read suites/...
        config.args[:] = [above]
    elif config.getoption("--pd-with-suites"):
        config.args.append(above)


def stage_of(path: Path) -> str:
    """The stage of a test file: a bundled suite's folder, or `own`."""
    folder = suites_folder()
    return path.relative_to(folder).parts[0] if path.is_relative_to(folder) else OWN_STAGE


def probe_id(item: pytest.Item) -> str:
    """The id of a probe in records: pytest's own, but a bundled one's begins with suites/ wherever it is installed."""
    if stage_of(item.path) == OWN_STAGE:
        return item.nodeid
    within = item.path.relative_to(suites_folder().parent).as_posix()
    return "::".join([within, *item.nodeid.split("::")[1:]])


def is_probe(item: pytest.Item) -> TypeGuard[pytest.Function]:
    """Whether `item` asks the deployment: it uses one of our fixtures."""
    return isinstance(item, pytest.Function) and any(
        name == "pd" or name.startswith("pd_") for name in item.fixturenames
    )


def asks_for_answers(item: pytest.Item) -> bool:
    """Whether a probe waits for answers of the model; one that asks each service something cheap doesn't."""
    return isinstance(item, pytest.Function) and "pd_service" not in item.fixturenames


def can_wedge(item: pytest.Item) -> bool:
    """Whether a probe may leave a deployment that answers nobody: so its mark says, or much at once, or the risk."""
    marked = any(item.get_closest_marker(name) is not None for name in ("can_wedge", "disruptive"))
    callspec = getattr(item, "callspec", None)
    return marked or (callspec is not None and int(callspec.params.get("level", 1)) >= MANY)


class Collection:
    """Hooks of collection, in each process that collects."""

    def __init__(self, config: pytest.Config, run: Run, hand_back: Path | None) -> None:
        self._config = config
        self._run = run
        self._hand_back = hand_back
        self._selected_from: int | None = None
        self.plan: Plan | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Of the folder above the suites, collect only the suites."""
        folder = suites_folder()
        given_by_us = str(folder.parent) in self._config.args
        if given_by_us and collection_path.parent == folder.parent and collection_path != folder:
            given = [
                Path(arg.split("::")[0]).resolve() for arg in self._config.args if arg != str(folder.parent)
            ]
            return None if any(path.is_relative_to(collection_path) for path in given) else True
        return None

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Validate the marks; give `level`, `rounds` and `pd_service` their values."""
        marks = self._marks(metafunc)
        names = metafunc.fixturenames
        if (levels := marks.get("concurrency")) is not None:
            if "level" not in names:
                pytest.fail("@pytest.mark.concurrency: the test has no argument `level`", pytrace=False)
            metafunc.parametrize("level", [self._level(level) for level in levels])
        if (turns := marks.get("multi_turn")) is not None and "rounds" in names:
            metafunc.parametrize("rounds", [turns.rounds])
        if "pd_service" in names:
            services = self._run.target.services
            metafunc.parametrize(
                "pd_service", services, ids=[service.name for service in services], indirect=True
            )

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out what is deeper than the run goes, order the stages, and give each probe its deadline."""
        deeper = [item for item in items if is_probe(item) and not self._run.depth.includes(_depth(item))]
        if deeper:
            config.hook.pytest_deselected(items=deeper)
        left = [item for item in items if item not in deeper]
        order = [*STAGES, OWN_STAGE]
        items[:] = sorted(left, key=lambda item: order.index(stage_of(item.path)))
        for item in items:
            if is_probe(item):
                self._prepare(item)
        self._selected_from = sum(is_probe(item) for item in items)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Add up what is going to be sent."""
        probes = [item for item in session.items if is_probe(item)]
        running = [item for item in probes if item.get_closest_marker("skip") is None]
        stated = [allowance(item) for item in running]
        total = CALIBRATION_SENDS if any(read_mark(item, "needs") for item in running) else Sends()
        for sends in stated:
            total += sends or Sends()
        for _ in filter(can_wedge, running):
            total += CANARY_SENDS
        silent = sum(
            sends is None and stage_of(item.path) == OWN_STAGE
            for item, sends in zip(running, stated, strict=True)
        )
        some = self._selected_from is not None and len(probes) < self._selected_from
        self.plan = Plan(
            probes=len(probes),
            selection=f"{len(probes)} of {self._selected_from} probes" if some else "",
            sends=total,
            silent=silent,
        )
        if self._hand_back is not None:
            self._hand_back.write_bytes(msgspec.json.encode(self.plan))

    def _marks(self, metafunc: pytest.Metafunc) -> dict[str, Any]:
        try:
            return {name: read_mark(metafunc.definition, name) for name in MARKS}
        except ValueError as problem:
            pytest.fail(str(problem), pytrace=False)

    def _level(self, level: int) -> Any:
        most = self._run.max_concurrency
        if most is None or level <= most:
            return level
        reason = f"{level} at once is more than the {most} that are allowed (--pd-max-concurrency)"
        return pytest.param(level, marks=pytest.mark.skip(reason=reason))

    def _prepare(self, item: pytest.Function) -> None:
        if item.get_closest_marker("timeout") is None:
            seconds = STAGES.get(stage_of(item.path)) or _configured_timeout(self._config) or OWN_SECONDS
            # By signal, whatever the configuration says: the other method ends the session with the probe.
            method = {"method": "signal"} if hasattr(signal, "SIGALRM") else {}
            item.add_marker(pytest.mark.timeout(seconds, func_only=True, **method))
        if item.get_closest_marker("disruptive") is not None and not self._run.disruptive:
            item.add_marker(pytest.mark.skip(reason="may disturb other users: only with --pd-disruptive"))


def _depth(item: pytest.Function) -> Depth:
    depth: Depth | None = read_mark(item, "depth")
    return depth or Depth.QUICK


def _configured_timeout(config: pytest.Config) -> float:
    """pytest-timeout's own setting in seconds; 0 when there is none."""
    return float(config.getoption("timeout") or config.getini("timeout") or 0)


def _tokens(count: int) -> str:
    return f"{count / 1000:,.0f}k" if count >= 10_000 else f"{count:,}"
