"""The end of a log, to show when something fails."""

from pathlib import Path

SHOWN_BYTES = 16_384


def tail(log: Path, lines: int = 25) -> str:
    """Return the last lines of a log, each indented and led by the log's name."""
    if not log.exists():
        return f"  (no {log})"
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - SHOWN_BYTES))
        text = file.read().decode(errors="replace")
    return "\n".join([f"  {log}:", *(f"  | {line}" for line in text.splitlines()[-lines:])])
