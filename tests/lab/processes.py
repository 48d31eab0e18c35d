"""Processes that can't outlive the one that started them, and what /proc says about them."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

LEASH = Path(__file__).with_name("leash.py")
END_LIMIT = 30.0
"""Seconds that all of a command's processes may take to be gone: the leash's grace, and then some."""


class Leashed:
    """A running command (see leash.py): it ends with its whole family at `end`, or when this process dies."""

    def __init__(
        self, command: Sequence[str], environ: Mapping[str, str], folder: Path, out: IO[bytes] | None = None
    ) -> None:
        """Start `command` in `folder`, its output going to `out`, or to where ours goes."""
        # A session of its own: Ctrl-C reaches only us, and we end things in order.
        self._leash = subprocess.Popen(
            [sys.executable, "-P", str(LEASH), *command],
            cwd=folder,
            env=dict(environ),
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The leash's process id: the command is its only child while it runs."""
        return self._leash.pid

    def status(self) -> int | None:
        """Return the command's exit status, None while it runs."""
        return self._leash.poll()

    def wait(self, seconds: float) -> int:
        """Return the command's exit status when it has ended; raises subprocess.TimeoutExpired."""
        return self._leash.wait(seconds)

    def let_go(self) -> None:
        """Have the command ended, without waiting for it."""
        if self._leash.stdin:
            self._leash.stdin.close()

    def end(self) -> None:
        """Have the command ended, and wait until the last of its processes is gone."""
        self.let_go()
        self._leash.wait(END_LIMIT)


def descendants(pid: int) -> Iterator[tuple[int, str]]:
    """Yield process id and name (15 characters, from /proc) of each process below `pid`, nearest first."""
    parents: dict[int, list[tuple[int, str]]] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdecimal():
            continue
        try:
            stat = Path("/proc", entry, "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # ended while we looked
        # "pid (name) state parent ...", where the name may itself contain brackets and spaces
        name, rest = stat.split("(", 1)[1].rsplit(")", 1)
        parents.setdefault(int(rest.split()[1]), []).append((int(entry), name))
    queue = [pid]
    while queue:
        below = parents.get(queue.pop(0), [])
        yield from below
        queue.extend(child for child, _ in below)
