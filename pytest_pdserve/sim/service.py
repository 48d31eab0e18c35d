"""One process of the simulated deployment: `python -m pytest_pdserve.sim.service`.

Started by the warden, which sends one JSON line on stdin (the plan, which service to be, and the file
descriptors of its listening sockets and of the pipe that hears when it is ready). When stdin ends, the warden
is gone, and so is the reason for this process.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import threading
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import uvicorn

from pytest_pdserve.sim.connection import Protocol
from pytest_pdserve.sim.plan import Dialect, Plan, Role, Service

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.applications import Starlette

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Order:
    """What the warden tells a service."""

    plan: Plan
    name: str
    http_fd: int
    ready_fd: int
    warden_pid: int
    bootstrap_fd: int | None = None


def die_with_parent(parent_pid: int) -> None:
    """End this process when its parent ends, however that ends, even while this process is stopped.

    The kernel does it on Linux; elsewhere only the end of stdin tells (see `main`).
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(0)


def _leave_at_end_of_stdin() -> None:
    while os.read(0, 4096):
        continue
    os._exit(0)


def _application(order: Order, service: Service) -> Starlette:
    if service.role is Role.PROXY:
        from pytest_pdserve.sim.proxy import Proxy

        return Proxy(order.plan, service).app()
    if service.role is Role.ROUTER:
        # each process pays only for its own imports
        if order.plan.dialect is Dialect.VLLM:
            from pytest_pdserve.sim.vllm_router import VllmRouter

            return VllmRouter(order.plan, service).app()
        from pytest_pdserve.sim.sglang_router import SglangRouter

        return SglangRouter(order.plan, service).app()
    bootstrap = None if order.bootstrap_fd is None else socket.socket(fileno=order.bootstrap_fd)
    if order.plan.dialect is Dialect.VLLM:
        from pytest_pdserve.sim.vllm_worker import VllmWorker

        return VllmWorker(order.plan, service, bootstrap).app()
    from pytest_pdserve.sim.sglang_worker import SglangWorker

    return SglangWorker(order.plan, service, bootstrap).app()


def _announcing(app: Starlette, ready_fd: int) -> Starlette:
    """The application, telling the warden when it has started."""
    inner = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(application: Starlette) -> AsyncIterator[None]:
        async with inner(application):
            os.write(ready_fd, b"R")
            os.close(ready_fd)
            yield

    app.router.lifespan_context = lifespan
    return app


def main() -> None:
    """Serve until killed or until the warden is gone."""
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=Order)
    die_with_parent(order.warden_pid)
    threading.Thread(target=_leave_at_end_of_stdin, daemon=True).start()
    service = next(each for each in order.plan.services if each.name == order.name)
    router = service.role in (Role.ROUTER, Role.PROXY)
    config = uvicorn.Config(
        _announcing(_application(order, service), order.ready_fd),
        http=Protocol,
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        # the real router passes the workers' date and server headers on instead of adding its own
        server_header=not router,
        date_header=not router,
        timeout_keep_alive=75 if router else 5,
    )
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=order.http_fd)])


if __name__ == "__main__":
    main()
