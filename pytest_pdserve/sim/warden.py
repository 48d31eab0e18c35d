"""The process between the caller and the simulated services: `python -m pytest_pdserve.sim.warden`.

It binds the ports, starts the services and ends them when its stdin ends, which the system sees to however
the caller ends. The services die with the warden: the kernel kills a child when the *thread* that started it
ends, so they need a parent whose main thread lasts, which no caller can promise.

Protocol, one JSON line each: a Request on stdin, then Commands; a Report on stdout after each of them. A service
that ends with the exit code `RESTART` is started again at once, as whoever supervises an engine would.
"""

from __future__ import annotations

import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import IO, TYPE_CHECKING

import msgspec

from pytest_pdserve.sim.plan import Plan, Role, Service

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

START_S = 30.0
RESTART = 75
"""The exit code of a service that wants to be started again."""
ONCE = "silent-restart"
"""The fault that a service which restarted by itself doesn't get again."""
_LAST_LINES = 12
_LOOK_S = 0.05
"""How often the warden looks whether a service wants to be started again."""
_END_S = 10.0


@dataclass(frozen=True, slots=True)
class Request:
    """What the caller wants started; ports from `port_base` on, or any free ones."""

    plan: Plan
    port_base: int | None = None


class Act(StrEnum):
    """What may be done to a running service."""

    KILL = "kill"
    STOP = "stop"
    CONTINUE = "continue"
    RESTART = "restart"


@dataclass(frozen=True, slots=True)
class Command:
    """What shall become of some services, by name, and which faults one that is started again has."""

    acts: dict[str, Act] = field(default_factory=dict)
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """What became of it: the services with their ports and pids, or one line of error and log lines."""

    services: tuple[Service, ...] = ()
    pids: dict[str, int] = field(default_factory=dict)
    error: str = ""
    log: tuple[str, ...] = ()


class StartError(Exception):
    """The deployment can't be started; `log` is what the service that died wrote last."""

    def __init__(self, text: str, log: tuple[str, ...] = ()) -> None:
        super().__init__(text)
        self.log = log


def _names(plan: Plan) -> list[tuple[str, Role]]:
    """Every service in the order of its ports: from 30000 on, the common layout of an SGLang deployment."""
    names = [("prefill-0", Role.PREFILL), ("router", Role.ROUTER), ("decode-0", Role.DECODE)]
    names += [(f"prefill-{i}", Role.PREFILL) for i in range(1, plan.prefill)]
    names += [(f"decode-{i}", Role.DECODE) for i in range(1, plan.decode)]
    return [*names, *([("proxy", Role.PROXY)] if plan.proxy else [])]


def _listen(port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(("127.0.0.1", port))
    except (OSError, OverflowError) as error:
        sock.close()
        raise StartError(f"port {port} can't be used: {getattr(error, 'strerror', None) or error}") from None
    sock.listen(1024)
    return sock


class Warden:
    """Holds the services of one deployment."""

    def __init__(self) -> None:
        self._base: int | None = None
        self._sockets: dict[str, socket.socket] = {}
        self._bootstraps: dict[str, socket.socket] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._logs: dict[str, IO[bytes]] = {}
        self._plan = Plan()

    def _bind(self, plan: Plan) -> list[Service]:
        names = _names(plan)
        for name, _ in names:
            self._sockets[name] = _listen(self._next_port())
        for name, role in names:
            if role is Role.PREFILL:
                self._bootstraps[name] = _listen(self._next_port())
        return [
            Service(
                name,
                role,
                self._sockets[name].getsockname()[1],
                self._bootstraps[name].getsockname()[1] if name in self._bootstraps else None,
            )
            for name, role in names
        ]

    def _next_port(self) -> int:
        return 0 if self._base is None else self._base + len(self._sockets) + len(self._bootstraps)

    def start(self, request: Request) -> Report:
        """Start every service and wait until all are ready. Raises StartError."""
        self._base = request.port_base
        self._plan = replace(request.plan, services=tuple(self._bind(request.plan)))
        self._start([service.name for service in self._plan.services])
        return self._report()

    def obey(self, command: Command) -> Report:
        """Do what is asked, and wait until what was started is ready. Raises StartError."""
        self._plan = replace(self._plan, faults=command.faults)
        for name, act in command.acts.items():
            if act in (Act.KILL, Act.RESTART):
                self._processes[name].kill()
                self._processes[name].wait(_END_S)
            else:
                self._processes[name].send_signal(signal.SIGSTOP if act is Act.STOP else signal.SIGCONT)
        self._start([name for name, act in command.acts.items() if act is Act.RESTART])
        return self._report()

    def look(self) -> None:
        """Start again what ended in order to be. Raises StartError."""
        ended = [name for name, process in self._processes.items() if process.poll() == RESTART]
        if ended:
            kept = tuple(text for text in self._plan.faults if not text.startswith(ONCE))
            self._plan = replace(self._plan, faults=kept)
            self._start(ended)

    def _report(self) -> Report:
        pids = {name: process.pid for name, process in self._processes.items()}
        return Report(self._plan.services, pids)

    def _start(self, names: list[str]) -> None:
        waiting = {self._spawn(name): name for name in names}
        until = time.monotonic() + START_S
        with selectors.DefaultSelector() as selector:
            for ready in waiting:
                selector.register(ready, selectors.EVENT_READ)
            while waiting:
                events = selector.select(max(0.0, until - time.monotonic()))
                if not events:
                    raise self._failed(next(iter(waiting.values())), f"is not ready after {START_S:g} s")
                for key, _ in events:
                    ready = key.fd
                    selector.unregister(ready)
                    said = os.read(ready, 1)
                    os.close(ready)
                    name = waiting.pop(ready)
                    if said != b"R":
                        raise self._failed(name, "died while starting")

    def _spawn(self, name: str) -> int:
        """Start one service; returns the file descriptor on which it says that it is ready."""
        ready, said = os.pipe()
        log = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as its service)
        sockets = self._sockets_of(name)
        order = {
            "plan": msgspec.to_builtins(self._plan),
            "name": name,
            "http_fd": sockets[0].fileno(),
            "bootstrap_fd": sockets[1].fileno() if len(sockets) > 1 else None,
            "ready_fd": said,
            "warden_pid": os.getpid(),
        }
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "pytest_pdserve.sim.service"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=[said, *(sock.fileno() for sock in sockets)],
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(order).encode() + b"\n")
        process.stdin.flush()
        os.close(said)
        for sock in sockets:
            sock.close()
        self._processes[name] = process
        self._logs[name] = log
        return ready

    def _sockets_of(self, name: str) -> list[socket.socket]:
        """The listening sockets for a service that starts: those bound at first, later new ones on the same ports.

        Nobody holds them while it is dead, so that its ports refuse connections, as those of a dead service do.
        """
        first = [held.pop(name) for held in (self._sockets, self._bootstraps) if name in held]
        if first:
            return first
        service = next(each for each in self._plan.services if each.name == name)
        ports = [service.port, *([service.bootstrap_port] if service.bootstrap_port else [])]
        return [_listen(port) for port in ports]

    def _failed(self, name: str, what: str) -> StartError:
        log = self._logs[name]
        log.seek(0)
        lines = log.read().decode("utf-8", "replace").splitlines()
        return StartError(f"{name} {what}", tuple(lines[-_LAST_LINES:]))

    def stop(self) -> None:
        """End every service at once, also stopped ones."""
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait(_END_S)


def _lines() -> Iterator[bytes | None]:
    """The lines of stdin until it ends, and None every now and then while there is none."""
    held = b""
    while True:
        readable, _, _ = select.select([sys.stdin.fileno()], [], [], _LOOK_S)
        if not readable:
            yield None
            continue
        piece = os.read(sys.stdin.fileno(), 65536)
        if not piece:
            return
        *lines, held = (held + piece).split(b"\n")
        yield from lines


def _answer(work: Callable[[], Report]) -> bool:
    """Report what became of some work; tells whether it went well."""
    try:
        report = work()
    except StartError as error:
        report = Report(error=str(error), log=error.log)
    sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
    sys.stdout.buffer.flush()
    return not report.error


def main() -> None:
    """Start what stdin asks for, report on stdout, obey its commands, and hold it until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the caller's to handle
    lines = _lines()
    first = next(line for line in lines if line is not None)
    warden = Warden()
    try:
        if not _answer(partial(warden.start, msgspec.json.decode(first, type=Request))):
            return
        for line in lines:
            if line is None:
                warden.look()
            else:
                _answer(partial(warden.obey, msgspec.json.decode(line, type=Command)))
    finally:
        warden.stop()


if __name__ == "__main__":
    main()
