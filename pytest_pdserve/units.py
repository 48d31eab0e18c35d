"""Numbers as people read them, each with its unit."""

from __future__ import annotations


def seconds(value: float) -> str:
    """A length of time in seconds, as `12 ms`, `0.11 s`, `17.9 s`, `1 min 52 s` or `2 h 3 min`.

    Two or three digits carry meaning for a latency; more would claim a precision that no client has.
    """
    if value < 0:
        return f"-{seconds(-value)}"
    if value < 0.001:
        return f"{value * 1000:.1g} ms" if value else "0 ms"
    if value < 0.0995:
        return f"{value * 1000:.0f} ms"
    if value < 9.995:
        return f"{value:.2f} s"
    if value < 59.95:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(value / 60)
    return f"{minutes // 60:,} h {minutes % 60} min"


def count(number: int, thing: str, things: str | None = None) -> str:
    """`1 probe`, `1,420 requests`; `things` is the plural where an s doesn't make it."""
    return f"{number:,} {thing if number == 1 else things or f'{thing}s'}"
