"""Bytes that remember when they arrived."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Stamped:
    """Append-only bytes with the arrival time of every chunk.

    Costs 16 bytes a chunk beside the data. It doesn't bound itself: whoever appends watches `len()`.
    """

    __slots__ = ("data", "ends", "times")

    def __init__(self) -> None:
        self.data = bytearray()
        """All bytes so far."""
        self.times = array("d")
        """For each chunk, its arrival in monotonic seconds; never decreasing."""
        self.ends = array("q")
        """For each chunk, the offset in `data` just behind its last byte; increasing."""

    def append(self, at: float, chunk: bytes | bytearray | memoryview) -> None:
        """Add a chunk that arrived at `at` (monotonic seconds). An empty chunk leaves no trace."""
        if chunk:
            self.data += chunk
            self.times.append(at)
            self.ends.append(len(self.data))

    def clear(self) -> None:
        """Forget everything; the buffers themselves stay the same objects."""
        self.data.clear()
        del self.times[:]
        del self.ends[:]

    def copy(self) -> Stamped:
        """An independent copy."""
        other = Stamped()
        other.data[:] = self.data
        other.times.extend(self.times)
        other.ends.extend(self.ends)
        return other

    def time_of(self, offset: int) -> float:
        """When the byte at `offset` arrived, in monotonic seconds.

        Raises IndexError when there is no such byte.
        """
        if not 0 <= offset < len(self.data):
            raise IndexError(f"no byte {offset}: there are {len(self.data)}")
        return self.times[bisect_right(self.ends, offset)]

    @property
    def chunks(self) -> int:
        """How many chunks have arrived."""
        return len(self.times)

    def __iter__(self) -> Iterator[tuple[float, bytes]]:
        """Every chunk with its arrival time, in order."""
        start = 0
        for at, end in zip(self.times, self.ends, strict=True):
            yield at, bytes(self.data[start:end])
            start = end

    def __len__(self) -> int:
        return len(self.data)

    def __repr__(self) -> str:
        return f"<Stamped: {len(self.data)} bytes in {len(self.times)} chunks>"
