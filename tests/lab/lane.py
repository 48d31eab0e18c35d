"""What a lane is: a deployment of real software that can be set up, started and checked on this machine."""

import socket
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from tests.lab.deployment import Running, Service


class Lane(ABC):
    """One real deployment, as data and as the few things that only it knows how to do."""

    name: ClassVar[str]
    isolated: ClassVar[bool]
    """Whether it listens on every interface, and so must have a network of its own."""
    checks: ClassVar[str]
    """File in this folder with the lane's checks, run by pytest."""
    ports: Mapping[str, int]
    """Every fixed port it listens on, by what listens there."""

    @abstractmethod
    def prepare(self, folder: Path) -> bool:
        """Set up packages and model in `folder` unless they are there; say whether anything was done."""

    @abstractmethod
    def waves(self, folder: Path, work: Path) -> Sequence[Sequence[Service]]:
        """Return the services in the order of their start; `work` is an empty folder for what they write."""

    def tune(self, up: Sequence[Running]) -> None:
        """Adjust the running processes to this machine; nothing, unless a lane needs it."""
        return


def taken(ports: Mapping[str, int]) -> dict[str, int]:
    """Return those of `ports` on 127.0.0.1 that something else listens on."""
    found = {}
    for name, port in ports.items():
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind(("127.0.0.1", port))
            except OSError:
                found[name] = port
    return found
