"""Numbers in words for people."""

from __future__ import annotations


def size(count: int) -> str:
    """A byte count, such as `1 byte`, `812 kB` or `1.3 MB` (decimal units)."""
    if count < 1000:
        return "1 byte" if count == 1 else f"{count} bytes"
    if count < 9_950:
        return f"{count / 1e3:.1f} kB"
    return f"{count / 1e3:.0f} kB" if count < 999_500 else f"{count / 1e6:.1f} MB"


def seconds(duration: float) -> str:
    """A duration, such as `0.3 s`."""
    return f"{duration:.1f} s"


def counted(count: int, singular: str) -> str:
    """A count with its noun, such as `1 chunk` or `4,000 chunks`."""
    return f"{count:,} {singular}" if count == 1 else f"{count:,} {singular}s"


def shown(data: bytes, limit: int = 60) -> str:
    """The first line of bytes from a stranger, quoted, with everything unprintable escaped."""
    line = data.partition(b"\n")[0].rstrip(b"\r")
    return repr(line[:limit].decode("latin-1")) + ("..." if len(line) > limit else "")
