"""A network of one's own, with nothing in it but loopback: for services that listen on every interface."""

import ctypes
import fcntl
import os
import socket
import struct
from pathlib import Path

CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
SIOCSIFFLAGS = 0x8914
IFF_UP = 0x1


class IsolationError(Exception):
    """This machine does not let us have a network of our own."""


def isolate() -> None:
    """Move this process, and all it starts later, into a new network, for good. Raises IsolationError."""
    user, group = os.getuid(), os.getgid()
    flags = CLONE_NEWNET if user == 0 else CLONE_NEWNET | CLONE_NEWUSER
    if ctypes.CDLL(None, use_errno=True).unshare(flags):
        why = os.strerror(ctypes.get_errno())
        raise IsolationError(
            f"no network namespace for this lane ({why}); run it as root, or allow user namespaces"
        )
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", IFF_UP))
