"""Run one command on a leash: `python leash.py COMMAND...`, with a pipe as standard input.

The holder of the pipe's other end keeps it open for as long as the command may live. When the pipe closes,
for whatever reason (the holder lets go, crashes, is killed), the command and all its descendants are ended,
stopped ones and orphans too. The same happens to what the command leaves behind when it ends by itself. Exits
with the command's status, with 128 + n when signal n ended it.

Stands alone, so that it can be run as a script with nothing on the import path. Linux only.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

GRACE = 10.0
"""Seconds between asking the command to end (SIGTERM) and ending it (SIGKILL)."""

PR_SET_CHILD_SUBREAPER = 36


def main(command: Sequence[str]) -> int:
    """Start `command`, wait for its end or the pipe's, end what is left of it, and return its exit status."""
    # Orphaned descendants become this process's children, so that none can get away.
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    # Only the pipe ends it. A handler, because a signal that is ignored here is ignored by the command too.
    signal.signal(signal.SIGTERM, lambda *_: None)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0)
    ended = os.pidfd_open(child.pid)
    select.select([sys.stdin, ended], [], [])
    if child.poll() is None:
        # A stopped process sees the first signal only after the second.
        os.killpg(child.pid, signal.SIGTERM)
        os.killpg(child.pid, signal.SIGCONT)
        select.select([ended], [], [], GRACE)
    child.poll()
    while left := list(children()):
        for pid in left:
            os.kill(pid, signal.SIGKILL)
            if pid == child.pid:
                child.wait()
            else:
                os.waitpid(pid, 0)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def children() -> Iterable[int]:
    """Return the process ids of this process's children."""
    return map(int, Path("/proc/self/task", str(os.getpid()), "children").read_text().split())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
