"""Reading what a router says of its workers, and which of those addresses we may take for ours."""

import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from pytest_pdserve.settings import AddressError, base_url
from pytest_pdserve.target.target import Role

MOST = 64
"""Workers looked at; a router that lists more has the rest left out, with a note."""

_ROLES = {"prefill": Role.PREFILL, "decode": Role.DECODE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a router told of its workers."""

    workers: tuple[tuple[Role, str], ...] = ()
    """Role and base URL, by role and then by URL, since routers list them in no stable order."""
    bootstrap_ports: tuple[tuple[str, int], ...] = ()
    """Base URL of a prefill, and the port where it meets its decodes."""
    notes: tuple[str, ...] = ()


def read_workers(data: Any, *, router_is_local: bool) -> Told | None:
    """The workers in a /workers answer (sglang-router, vllm-router), or None when the data is no such answer.

    A loopback address is the router's own machine. Unless that is ours too, it is left out: a probe must
    not take something that listens here for a worker.
    """
    entries = data.get("workers") if isinstance(data, dict) else None
    if not isinstance(entries, list):
        return None
    if not all(isinstance(entry, dict) and isinstance(entry.get("url"), str) for entry in entries):
        return None
    found: set[tuple[Role, str]] = set()
    ports: dict[str, int] = {}
    notes: list[str] = []
    if len(entries) > MOST:
        notes.append(f"the router lists {len(entries)} workers; only the first {MOST} are looked at")
    for entry in entries[:MOST]:
        role, announced = _ROLES.get(entry.get("worker_type", "")), _cut(entry["url"])
        url = _usable(entry["url"])
        if role is None:
            notes.append(f"the router's worker {announced} is neither prefill nor decode: left out")
        elif url is None:
            notes.append(f"the router's {role} {announced} is no http address: left out")
        elif is_local(url) and not router_is_local:
            notes.append(f"the router's {role} {announced} is an address on its own machine: left out")
        else:
            found.add((role, url))
            if isinstance(port := entry.get("bootstrap_port"), int):
                ports[url] = port
            notes.extend(_health(entry, role, url))
    order = list(Role)
    workers = sorted(found, key=lambda worker: (order.index(worker[0]), worker[1]))
    return Told(
        workers=tuple(workers), bootstrap_ports=tuple(ports.items()), notes=tuple(dict.fromkeys(notes))
    )


def is_local(url: str) -> bool:
    """Whether a URL's host means the machine itself, whichever that is."""
    return is_local_host(urlsplit(url).hostname or "")


def is_local_host(host: str) -> bool:
    """Whether a host name or address is a loopback or unspecified one."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return any(one.is_loopback or one.is_unspecified for one in (address, mapped) if one is not None)


def _usable(announced: str) -> str | None:
    try:
        # A router that knows data-parallel ranks appends the rank: http://host:port@3.
        return base_url(re.sub(r"@\d+$", "", announced))
    except AddressError:
        return None


def _health(entry: dict[str, Any], role: Role, url: str) -> Iterator[str]:
    if entry.get("is_healthy") is False:
        yield f"the router calls {role} {url} unhealthy"


def _cut(announced: str) -> str:
    """An announced address for people, without what stands before an @ in it."""
    return re.sub(r"//[^/]*@(?!\d+$)", "//…@", announced)[:120]
