"""The process between the caller and the simulated services: `python -m pytest_pdserve.sim.warden`.

It binds the ports, starts the services and ends them when its stdin ends, which the system sees to however
the caller ends. The services die with the warden: the kernel kills a child when the *thread* that started it
ends, so they need a parent whose main thread lasts, which no caller can promise.

Protocol, one JSON line each: a Request on stdin; a Report on stdout.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from typing import IO

import msgspec

from pytest_pdserve.sim.plan import Plan, Role, Service

START_S = 30.0
_LAST_LINES = 12


@dataclass(frozen=True, slots=True)
class Request:
    """What the caller wants started; ports from `port_base` on, or any free ones."""

    plan: Plan
    port_base: int | None = None


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

    def __init__(self, request: Request) -> None:
        self._base = request.port_base
        self._sockets: dict[str, socket.socket] = {}
        self._bootstraps: dict[str, socket.socket] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._logs: dict[str, IO[bytes]] = {}
        self._plan = replace(request.plan, services=tuple(self._bind(request.plan)))

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

    def start(self) -> Report:
        """Start every service and wait until all are ready. Raises StartError."""
        waiting = {self._spawn(service.name): service.name for service in self._plan.services}
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
        pids = {name: process.pid for name, process in self._processes.items()}
        return Report(self._plan.services, pids)

    def _spawn(self, name: str) -> int:
        """Start one service; returns the file descriptor on which it says that it is ready."""
        ready, said = os.pipe()
        log = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as its service)
        sockets = [self._sockets[name], *([self._bootstraps[name]] if name in self._bootstraps else [])]
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
            process.wait(10)


def main() -> None:
    """Start what stdin asks for, report on stdout, and hold it until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the caller's to handle
    request = msgspec.json.decode(sys.stdin.buffer.readline(), type=Request)
    warden: Warden | None = None
    try:
        try:
            warden = Warden(request)
            report = warden.start()
        except StartError as error:
            report = Report(error=str(error), log=error.log)
        sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
        sys.stdout.buffer.flush()
        if not report.error:
            while sys.stdin.buffer.read(4096):
                continue
    finally:
        if warden is not None:
            warden.stop()


if __name__ == "__main__":
    main()
