"""Starting and stopping a simulated deployment from Python."""

from __future__ import annotations

import http.client
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

import msgspec

from pytest_pdserve.sim import faults as fault_list
from pytest_pdserve.sim.control import PATH as CONTROL_PATH
from pytest_pdserve.sim.plan import Dialect, Plan, Role, Service, Skill, Timing
from pytest_pdserve.sim.warden import START_S, Act, Command, Report, Request

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

_Word = TypeVar("_Word", Dialect, Skill)
_STOP_S = 10.0
_CONTROL_S = 5.0


class SimError(Exception):
    """The simulation can't be started or controlled: one line, and what the service at fault wrote last."""

    def __init__(self, text: str, log: Sequence[str] = ()) -> None:
        super().__init__("\n".join([text, *(f"  {line}" for line in log)]))
        self.log = tuple(log)


class Simulation:
    """A running deployment. Stop it, or use it as a context manager; it also ends with this process."""

    def __init__(self, warden: subprocess.Popen[bytes], report: Report, plan: Plan) -> None:
        self._warden = warden
        self._services = report.services
        self._faults: tuple[str, ...] = plan.faults
        self._states = dict.fromkeys(report.pids, Act.RESTART)
        """What was last done to each service; a running one was (re)started or continued."""
        self.pids: Mapping[str, int] = dict(report.pids)
        """The process id of every service by its name: router, prefill-0, decode-0 ..."""
        self.model = plan.model
        self.dialect = plan.dialect

    @property
    def entry(self) -> str:
        """The URL clients use: the proxy's if there is one, else the router's."""
        return (self._urls(Role.PROXY) or self._urls(Role.ROUTER))[0]

    @property
    def router(self) -> str:
        """The router's URL."""
        return self._urls(Role.ROUTER)[0]

    @property
    def prefill(self) -> tuple[str, ...]:
        """The prefill workers' URLs."""
        return self._urls(Role.PREFILL)

    @property
    def decode(self) -> tuple[str, ...]:
        """The decode workers' URLs."""
        return self._urls(Role.DECODE)

    @property
    def services(self) -> tuple[Service, ...]:
        """Every service with its ports."""
        return self._services

    def _urls(self, role: Role) -> tuple[str, ...]:
        return tuple(service.url for service in self._services if service.role is role)

    def kill(self, name: str) -> None:
        """End one service at once; its ports refuse connections afterwards. Raises SimError."""
        self._act({name: Act.KILL})

    def pause(self, name: str) -> None:
        """Stop one service as it is (SIGSTOP). Raises SimError."""
        self._act({name: Act.STOP})

    def resume(self, name: str) -> None:
        """Let a paused service go on. Raises SimError."""
        self._act({name: Act.CONTINUE})

    def restart(self, name: str) -> None:
        """End one service and start it again on the same ports; returns when it is ready. Raises SimError."""
        self._act({name: Act.RESTART})

    def _act(self, acts: Mapping[str, Act]) -> None:
        for name in acts:
            if name not in self._states:
                raise SimError(f'no service "{name}" (known: {", ".join(self._states)})')
        report = _ask(self._warden, Command(dict(acts), self._faults))
        if report.error:
            raise SimError(report.error, report.log)
        self._states.update(acts)
        self.pids = dict(report.pids)

    def _going(self, service: Service) -> bool:
        return self._states[service.name] in (Act.RESTART, Act.CONTINUE)

    def set_faults(self, *texts: str) -> None:
        """Replace the active faults in every service; those of processes strike, or let go, at once.

        Raises SimError for a wrong text or a service that died by itself.
        """
        _check_faults(texts)
        struck: dict[str, Act] = {}
        for fault in map(fault_list.parse, texts):
            if isinstance(fault, fault_list.ProcessFault):
                struck |= dict.fromkeys(fault.struck(self._services), fault.act)
        mended = {Act.KILL: Act.RESTART, Act.STOP: Act.CONTINUE}
        wanted = {name: struck.get(name) or mended.get(state, state) for name, state in self._states.items()}
        self._faults = texts
        self._act({name: act for name, act in wanted.items() if act is not self._states[name]})
        for service in filter(self._going, self._services):
            connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=_CONTROL_S)
            try:
                connection.request("PUT", CONTROL_PATH, json.dumps(texts))
                status = connection.getresponse().status
            except OSError as error:
                raise SimError(f"{service.name} can't be told its faults: {error}") from None
            finally:
                connection.close()
            if status != 200:
                raise SimError(f"{service.name} refuses the faults: {status}")

    def stop(self) -> None:
        """End every process of the deployment. Does nothing the second time."""
        _end(self._warden)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def start(
    *,
    prefill: int = 1,
    decode: int = 1,
    proxy: bool = False,
    faults: Sequence[str] = (),
    seed: int = 0,
    dialect: str = "sglang",
    model_skill: str = "copy",
    time_scale: float = 1.0,
    port_base: int | None = None,
    kv_tokens: int = 400_000,
    timing: Timing | None = None,
) -> Simulation:
    """Start a deployment on loopback: one router and so many prefill and decode workers, each a process.

    Args:
        prefill: how many prefill workers.
        decode: how many decode workers.
        proxy: whether a proxy stands in front of the router.
        faults: fault texts, as `pytest_pdserve.sim.faults` describes them.
        seed: decides everything random.
        dialect: the engine family to behave like.
        model_skill: "copy", or "none" for random text.
        time_scale: every simulated time, also of faults, is multiplied by it.
        port_base: the first of consecutive ports to use; any free ports by default.
        kv_tokens: room for KV in each worker; no request may need more.
        timing: the simulated engines' clock.

    Raises SimError when an argument is wrong or the deployment does not come up. May be called from any thread.
    """
    kv_room = int(_positive("room for KV", kv_tokens))
    plan = Plan(
        dialect=_choice("dialect", Dialect, dialect),
        skill=_choice("model skill", Skill, model_skill),
        seed=seed,
        time_scale=_positive("time scale", time_scale),
        prefill=int(_positive("number of prefill workers", prefill)),
        decode=int(_positive("number of decode workers", decode)),
        proxy=proxy,
        faults=tuple(faults),
        kv_tokens=kv_room,
        context_tokens=min(32_768, kv_room),
        timing=timing or Timing(),
    )
    _check_faults(faults)
    warden = subprocess.Popen(
        [sys.executable, "-P", "-m", "pytest_pdserve.sim.warden"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": _python_path()},
    )
    try:
        report = _ask(warden, Request(plan, port_base))
    except BaseException:
        _end(warden)
        raise
    if report.error:
        _end(warden)
        raise SimError(report.error, report.log)
    simulation = Simulation(warden, report, plan)
    if any(isinstance(fault_list.parse(text), fault_list.ProcessFault) for text in faults):
        simulation.set_faults(*faults)
    return simulation


def _choice(what: str, words: type[_Word], value: str) -> _Word:
    try:
        return words(value)
    except ValueError:
        raise SimError(f'no {what} "{value}" (known: {", ".join(words)})') from None


def _positive(what: str, value: float) -> float:
    if not 0 < value < float("inf"):
        raise SimError(f"the {what} must be above 0, not {value:g}")
    return value


def _check_faults(texts: Sequence[str]) -> None:
    for text in texts:
        try:
            fault_list.parse(text)
        except fault_list.FaultError as error:
            raise SimError(str(error)) from None


def _python_path() -> str:
    """PYTHONPATH for the children, so that they import this very package from wherever it is."""
    here = str(Path(__file__).parents[2])
    inherited = os.environ.get("PYTHONPATH")
    return here if not inherited else os.pathsep.join([here, inherited])


def _ask(warden: subprocess.Popen[bytes], request: Request | Command) -> Report:
    assert warden.stdin is not None
    assert warden.stdout is not None
    warden.stdin.write(msgspec.json.encode(request) + b"\n")
    warden.stdin.flush()
    said = b""
    until = time.monotonic() + START_S + 5.0
    while not said.endswith(b"\n"):
        readable, _, _ = select.select([warden.stdout], [], [], max(0.0, until - time.monotonic()))
        if not readable:
            raise SimError(f"the simulation is not ready after {START_S:g} s")
        piece = os.read(warden.stdout.fileno(), 65536)
        if not piece:
            raise SimError("the simulation's starter process died")
        said += piece
    return msgspec.json.decode(said, type=Report)


def _end(warden: subprocess.Popen[bytes]) -> None:
    for pipe in (warden.stdin, warden.stdout):
        if pipe is not None:
            pipe.close()
    try:
        warden.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        warden.kill()  # its services die with it
        warden.wait(_STOP_S)
