"""A simulated deployment by hand: `python -m pytest_pdserve.sim`."""

from __future__ import annotations

import dataclasses
import signal
import sys
from typing import TYPE_CHECKING

from pytest_pdserve.sim.command import read_arguments, start_as
from pytest_pdserve.sim.faults import KINDS
from pytest_pdserve.sim.faults.base import Scope
from pytest_pdserve.sim.launch import SimError, Simulation

if TYPE_CHECKING:
    from collections.abc import Sequence


def _fault_lines() -> str:
    lines = []
    for name, kind in sorted(KINDS.items()):
        usage = f"{name}={kind.arguments}" if kind.arguments else name
        lines += [usage, f"    {kind.about}", f"    imitates: {kind.report}"]
    lines.append(f"any fault also takes {', '.join(f'{field.name}=' for field in dataclasses.fields(Scope))}")
    lines.append("such as NAME=after=3,share=0.5: not the first 3 requests, then half of them")
    return "\n".join(lines)


def _show(simulation: Simulation, model: str) -> None:
    for service in simulation.services:
        print(f"{service.name:12} {service.url}   pid {simulation.pids[service.name]}")
    print(f"model {model}; try: curl {simulation.entry}/v1/models", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    wanted = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, wanted)  # none may come between the start and its clean-up
    try:
        given = read_arguments(sys.argv[1:] if argv is None else argv)
        if given.list_faults:
            print(_fault_lines())
            return 0
        simulation = start_as(given)
    except SimError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    with simulation:
        _show(simulation, simulation.model)
        signal.sigwait(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
