"""Where the lanes keep things."""

import os
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]


def cache(lane: str) -> Path:
    """Return the folder outside the checkout that keeps a lane's packages and model between runs."""
    base = os.environ.get("PDSERVE_LAB_CACHE")
    if base:
        return Path(base).expanduser().resolve() / lane
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "pytest-pdserve" / "lab" / lane


def build(lane: str) -> Path:
    """Return the checkout's folder for what a lane's last run left: logs, records, what is up."""
    return CHECKOUT / "build" / "lab" / lane
