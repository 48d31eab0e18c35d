"""The one process that knows the whole run: it resolves the target, and turns what probes left into a verdict."""

from __future__ import annotations

import html
import random
import shlex
import signal
import sys
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pytest

from pytest_pdserve import __version__
from pytest_pdserve.chat import http_client
from pytest_pdserve.judge import (
    OWN_STAGE,
    ProbeOutcome,
    ProbeRecord,
    Verdict,
    VerdictOutcome,
    judge_run,
)
from pytest_pdserve.plugin.collection import Plan
from pytest_pdserve.plugin.waiting import Wait
from pytest_pdserve.report import (
    RunRecord,
    header_cells,
    new_run_folder,
    point_latest,
    probe_html,
    row_cells,
    summary_html,
    terminal_block,
    write_record,
)
from pytest_pdserve.run import budget_of, transport
from pytest_pdserve.sim.command import read_arguments, start_as
from pytest_pdserve.sim.launch import SimError
from pytest_pdserve.target import Role, TargetError, resolve
from pytest_pdserve.wire import LoopThread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import httpx

    from pytest_pdserve.settings import Settings
    from pytest_pdserve.sim.launch import Simulation
    from pytest_pdserve.target import Target

RESOLVING: Final = 20.0
"""Backstop in seconds; `resolve` itself takes 10 at most."""
EXIT_INCONCLUSIVE: Final = 6
LETTERS: Final = {
    ProbeOutcome.HUNG: ("failed", "H", "HUNG"),
    ProbeOutcome.BROKE: ("failed", "B", "BROKE"),
    ProbeOutcome.INCONCLUSIVE: ("inconclusive", "?", "INCONCLUSIVE"),
    ProbeOutcome.NOT_RUN: ("skipped", "n", "NOT RUN"),
}
"""How pytest counts and shows outcomes that it has no word for."""


class Controller:
    """Hooks of the process that the user started."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self._config = config
        self._settings = settings
        self._began = time.monotonic()
        self._started = datetime.now(UTC)
        self._simulation: Simulation | None = None
        self._target: Target | None = None
        self._plan: Plan | None = None
        self._probes: dict[str, ProbeRecord] = {}  # by node id
        self._others_failed = False
        self._incomplete: str | None = None
        self._record: RunRecord | None = None
        self._trouble: list[str] = []
        self._hand_back = tempfile.TemporaryDirectory(prefix="pdserve-", ignore_cleanup_errors=True)
        self.hand_back = Path(self._hand_back.name)
        self.seed = random.SystemRandom().randrange(2**32)
        self.when_resolved: Callable[[Settings, Target], None] = lambda _settings, _target: None
        self._folder = None if _only_looks(config) else self._new_folder()
        self._terminated: Any = None
        self._waited: tuple[str, ...] = ()

    # --- before

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        """Start the simulation if that is the target, and find out what is under test."""
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            # A CI that runs out of patience sends it; by itself it would end us without a report.
            self._terminated = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            self._start_simulation()
            self._target = self._resolve()
        except (TargetError, SimError, ValueError) as problem:
            raise pytest.UsageError(f"--pd-target: {problem}") from None
        self.when_resolved(self._settings, self._target)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Hand the resolved target to an xdist worker: plain data, no secrets."""
        if self._target is not None:
            node.workerinput["pdserve"] = {
                "settings": self._settings.public(),
                "target": self._target.to_json(),
                "seed": self.seed,
                "hand_back": self._hand_back.name,
                "worker": node.gateway.id,
            }

    def pytest_report_header(self) -> list[str]:
        """Say what is under test."""
        target = self._target
        if target is None:
            return []
        engine = f"{target.engine} {target.engine_version}" if target.engine_version else target.engine
        counts = [
            f"{len(found)} {role}" for role in (Role.PREFILL, Role.DECODE) if (found := target.of(role))
        ]
        workers = ", ".join(counts) or "workers unknown"
        line = (
            f"pdserve: {target.name} · {target.entry} · {engine} · {target.model or 'no model'} · {workers}"
        )
        unreachable = (
            [f"pdserve: {target.unreachable}: nothing will be sent to it"] if target.unreachable else []
        )
        return [line, *unreachable, *(f"pdserve: note: {note}" for note in target.notes)]

    def pytest_report_collectionfinish(self) -> str:
        """Say what the run sends at most, where probes run in this process."""
        collection = self._config.pluginmanager.get_plugin("pdserve-collection")
        if collection is None or collection.plan is None:
            return ""
        self._plan = collection.plan
        return self._plan_line()

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any) -> None:
        """The same, where xdist's workers collect: the first one's plan stands for all."""
        if self._plan is None:
            handed = Path(self._hand_back.name) / f"{node.gateway.id}.json"
            self._plan = msgspec.json.decode(handed.read_bytes(), type=Plan)
            self._config.get_terminal_writer().line(self._plan_line())

    # --- during

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what a probe left behind; give its row in the HTML report the replies."""
        data = getattr(report, "pdserve", None)
        if data is not None:
            self._keep(report.nodeid, ProbeRecord.from_json(data))
            shown = _html_extra(probe_html(self._probes[report.nodeid]))
            report.extras = [*getattr(report, "extras", []), shown]  # type: ignore[attr-defined]
        elif report.failed and getattr(report, "when", None) == "???":
            self._keep(
                report.nodeid,
                ProbeRecord(
                    id=report.nodeid,
                    stage=OWN_STAGE,
                    outcome=ProbeOutcome.BROKE,
                    reason="the worker process died while this probe ran",
                ),
            )
        elif report.failed:
            self._others_failed = True

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Letters and words for outcomes that pytest doesn't know."""
        data = getattr(report, "pdserve", None)
        return LETTERS.get(ProbeOutcome(data["outcome"])) if data is not None else None

    def pytest_keyboard_interrupt(self) -> None:
        """Remember that the run did not end by itself."""
        self._incomplete = "interrupted"

    def pytest_internalerror(self) -> None:
        """The same, for an error in pytest or a plugin."""
        self._incomplete = "an internal error"

    # --- after

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Judge, write the record, and make the exit code the verdict's."""
        if self._target is None or self._folder is None:
            return
        probes = tuple(self._probes.values())
        verdict = judge_run(probes, unreachable=self._target.unreachable, incomplete=self._incomplete)
        self._record = RunRecord(
            tool_version=__version__,
            target=self._target,
            verdict=verdict,
            started=self._started.isoformat(timespec="seconds"),
            duration=time.monotonic() - self._began,
            depth=self._config.getoption("--pd-depth"),
            plan=str(self._plan or ""),
            selection=self._plan.selection if self._plan else "",
            incomplete=self._incomplete,
            waited=self._waited,
            client_lag=max((reply.client_lag for probe in probes for reply in probe.replies), default=0.0),
            probes=probes,
        )
        self._write(self._record)
        session.exitstatus = self._exit_code(verdict, session.exitstatus)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show the acceptance block."""
        if self._record is None:
            return
        writer = self._config.get_terminal_writer()
        terminalreporter.section("acceptance")
        terminalreporter.write_line(
            terminal_block(
                self._record,
                reports=self._shown_folder(),
                width=min(writer.fullwidth, 100),
                colour=writer.hasmarkup,
                unicode=_shows_unicode(),
                budget=budget_of(self._settings),
            )
        )
        for line in self._trouble:
            terminalreporter.write_line(f" {line}", red=True)

    def pytest_unconfigure(self) -> None:
        """Stop the simulation and clean up; a folder in which nothing was written goes, too."""
        if self._terminated is not None:
            signal.signal(signal.SIGTERM, self._terminated)
        if self._folder is not None and not any(self._folder.iterdir()):
            self._folder.rmdir()
        if self._simulation is not None:
            self._simulation.stop()
        self._hand_back.cleanup()

    # --- the HTML report

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_report_title(self, report: Any) -> None:
        """Name the page after the target."""
        report.title = f"{self._settings.name}: acceptance"

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_results_summary(self, prefix: list[str]) -> None:
        """Put the verdict first."""
        if self._record is not None:
            prefix.append(summary_html(self._record, budget=budget_of(self._settings)))

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_results_table_header(self, cells: list[str]) -> None:
        """Add our columns before the links."""
        cells[-1:-1] = list(header_cells())

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_results_table_row(self, report: pytest.TestReport, cells: list[str]) -> None:
        """Add our columns' values, and escape the test's id, which pytest-html shows as it is."""
        cells[:] = [cell.replace(report.nodeid, html.escape(report.nodeid)) for cell in cells]
        probe = self._probes.get(report.nodeid)
        cells[-1:-1] = list(row_cells(probe)) if probe is not None else ["<td></td>"] * len(header_cells())

    # --- pieces

    def _new_folder(self) -> Path:
        reports = self._config.invocation_params.dir / self._config.getoption("--pd-reports")
        try:
            folder = new_run_folder(reports, self._settings.name, self._started)
        except OSError as problem:
            raise pytest.UsageError(f"--pd-reports: {problem.filename}: {problem.strerror}") from None
        option = self._config.option
        if getattr(option, "htmlpath", None) is None:
            option.htmlpath = str(folder / "report.html")
            option.self_contained_html = True
        if option.xmlpath is None:
            option.xmlpath = str(folder / "junit.xml")
        return folder

    def _shown_folder(self) -> Path | None:
        """The run's folder as a user would name it from where pytest was started."""
        start = self._config.invocation_params.dir
        if self._folder is not None and self._folder.is_relative_to(start):
            return self._folder.relative_to(start)
        return self._folder

    def _start_simulation(self) -> None:
        if self._settings.simulated:
            given = self._config.getoption("--pd-sim")
            try:
                arguments = read_arguments(shlex.split(given))
            except (ValueError, SimError) as problem:
                raise SimError(f"--pd-sim={given!r}: {problem}") from None
            self._simulation = start_as(arguments)
            self._settings = replace(
                self._settings,
                entry=self._simulation.entry,
                router=self._simulation.router,
                prefill=self._simulation.prefill,
                decode=self._simulation.decode,
            )

    def _resolve(self) -> Target:
        limit = self._config.getoption("--pd-wait")
        wait = Wait(self._say, limit)
        loop = LoopThread()
        http = http_client(self._settings.credential, transport(self._settings))
        resolving = partial(wait.until_ready, self._settings) if limit else partial(resolve, self._settings)
        try:
            return loop.run(_and_close, resolving, http, bound=limit + 2 * RESOLVING)
        finally:
            loop.close()
            self._waited = tuple(wait.lines)

    def _say(self, line: str) -> None:
        """A line at once, before pytest's own report begins; nothing with -q."""
        if self._config.option.verbose >= 0:
            print(f"pdserve: {line}", flush=True)

    def _plan_line(self) -> str:
        return f"pdserve: plan {self._config.getoption('--pd-depth')}: {self._plan}"

    def _keep(self, nodeid: str, probe: ProbeRecord) -> None:
        """Keep a record; a failure on the way out of a probe that had failed doesn't replace what it found."""
        known = self._probes.get(nodeid)
        if known is None or not known.findings:
            self._probes[nodeid] = probe

    def _write(self, record: RunRecord) -> None:
        if self._folder is None:
            return
        try:
            write_record(self._folder, record)
            point_latest(self._folder)
        except OSError as problem:
            self._trouble.append(f"the record could not be written: {problem}")

    def _exit_code(self, verdict: Verdict, status: int) -> int:
        """The verdict's exit code; what says more (interrupted, internal error, usage) stays as it is."""
        if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            return status
        if not self._probes and not self._others_failed and verdict.outcome is not VerdictOutcome.REJECTED:
            return pytest.ExitCode.NO_TESTS_COLLECTED
        if verdict.outcome is VerdictOutcome.REJECTED or self._others_failed:
            return pytest.ExitCode.TESTS_FAILED
        if verdict.outcome is VerdictOutcome.ACCEPTED:
            return pytest.ExitCode.OK
        broke = any(probe.outcome is ProbeOutcome.BROKE for probe in self._probes.values())
        passes = self._config.getoption("--pd-inconclusive") == "pass" and not broke
        return pytest.ExitCode.OK if passes else EXIT_INCONCLUSIVE


def _only_looks(config: pytest.Config) -> bool:
    """Whether this run is about the tests themselves and probes nothing."""
    options = ("collectonly", "showfixtures", "show_fixtures_per_test", "setupplan")
    return any(config.getoption(option, False) for option in options)


async def _and_close(
    resolving: Callable[[httpx.AsyncClient], Awaitable[Target]], http: httpx.AsyncClient
) -> Target:
    async with http:
        return await resolving(http)


def _html_extra(content: str) -> dict[str, Any]:
    from pytest_html import extras

    return dict(extras.html(content))


def _shows_unicode() -> bool:
    return (getattr(sys.stdout, "encoding", None) or "ascii").lower().startswith("utf")
