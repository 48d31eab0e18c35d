"""A deployment: services that are started together, waited for, watched and ended together."""

import http.client
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.lab.logs import tail
from tests.lab.processes import Leashed

ASK_LIMIT = 2.0
"""Seconds one readiness request may take."""
ASK_AGAIN = 0.25
"""Seconds between two readiness requests."""


class StartError(Exception):
    """A service ended, or did not answer in time; the text ends with the last lines of its log."""


@dataclass(frozen=True, slots=True)
class Service:
    """One process of a deployment: how it is started, and the answer that says it is ready."""

    name: str
    command: tuple[str, ...]
    port: int
    """Port on 127.0.0.1 that is asked for readiness."""
    path: str = "/health"
    answer: bytes = b""
    """What the 200 answer to `path` must contain."""
    environ: Mapping[str, str] = field(default_factory=dict)
    limit: float = 300.0
    """Seconds until it must be ready."""

    @property
    def url(self) -> str:
        """The service's base URL."""
        return f"http://127.0.0.1:{self.port}"


@dataclass(frozen=True, slots=True)
class Running:
    """A service that is up, and the leash it runs on."""

    service: Service
    process: Leashed
    log: Path

    def ended(self) -> str:
        """Say that the service has ended, or return an empty string while it runs."""
        status = self.process.status()
        return "" if status is None else f"{self.service.name} ended with status {status}\n{tail(self.log)}"


@contextmanager
def running(
    waves: Sequence[Sequence[Service]], logs: Path, environ: Mapping[str, str]
) -> Iterator[list[Running]]:
    """Start the services wave after wave, each when the one before is ready; end them all on the way out.

    Each service's output goes to `logs`/NAME.log. Raises StartError.
    """
    logs.mkdir(parents=True, exist_ok=True)
    up: list[Running] = []
    try:
        for wave in waves:
            began = time.monotonic()
            # one by one as they start, so that those before a start that fails are ended too
            up.extend(_start(service, logs, environ) for service in wave)
            for one in up[-len(wave) :]:
                _wait(one, began + one.service.limit)
                print(
                    f"lab: {one.service.name} ready after {time.monotonic() - began:.0f} s: {one.service.url}",
                    flush=True,
                )
        yield up
    finally:
        for one in up:
            one.process.let_go()
        for one in up:
            one.process.end()


def describe(up: Sequence[Running]) -> str:
    """Return the deployment as JSON: URL, log and leash's process id of each service, by name."""
    return json.dumps(
        {
            one.service.name: {"url": one.service.url, "pid": one.process.pid, "log": str(one.log)}
            for one in up
        },
        indent=1,
    )


def _start(service: Service, logs: Path, environ: Mapping[str, str]) -> Running:
    log = logs / f"{service.name}.log"
    with log.open("wb") as out:
        process = Leashed(service.command, {**environ, **service.environ}, logs, out)
    return Running(service, process, log)


def _wait(one: Running, deadline: float) -> None:
    while not _ready(one.service):
        if ended := one.ended():
            raise StartError(ended)
        if time.monotonic() > deadline:
            raise StartError(f"{one.service.name} not ready after {one.service.limit:g} s\n{tail(one.log)}")
        time.sleep(ASK_AGAIN)


def _ready(service: Service) -> bool:
    asked = http.client.HTTPConnection("127.0.0.1", service.port, timeout=ASK_LIMIT)
    try:
        asked.request("GET", service.path)
        answer = asked.getresponse()
        return answer.status == 200 and service.answer in answer.read()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        asked.close()
