"""A simulated deployment by hand: `python -m pytest_pdserve.sim`."""

from __future__ import annotations

import argparse
import signal
import sys
from typing import TYPE_CHECKING

from pytest_pdserve.sim.faults import KINDS
from pytest_pdserve.sim.launch import SimError, Simulation, start

if TYPE_CHECKING:
    from collections.abc import Sequence


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m pytest_pdserve.sim",
        description="Run a simulated prefill-decode deployment on loopback until Ctrl-C.",
    )
    parser.add_argument("--dialect", default="sglang", help="the engine family to behave like")
    parser.add_argument("--prefill", type=int, default=1, metavar="N", help="how many prefill workers")
    parser.add_argument("--decode", type=int, default=1, metavar="M", help="how many decode workers")
    parser.add_argument(
        "--port-base",
        type=int,
        metavar="PORT",
        help="use consecutive ports: prefill PORT, router PORT+1, decode PORT+2, then the others",
    )
    parser.add_argument(
        "--fault", action="append", default=[], metavar="NAME[=ARGS]", help="a fault; may be repeated"
    )
    parser.add_argument("--list-faults", action="store_true", help="list the faults and leave")
    parser.add_argument("--seed", type=int, default=0, help="decides everything random")
    parser.add_argument("--model-skill", default="copy", help="copy, or none for random text")
    parser.add_argument(
        "--time-scale", type=float, default=1.0, metavar="X", help="multiply every simulated time by X"
    )
    return parser.parse_args(argv)


def _fault_lines() -> str:
    lines = []
    for name, kind in sorted(KINDS.items()):
        usage = f"{name}={kind.arguments}" if kind.arguments else name
        lines += [usage, f"    {kind.about}", f"    imitates: {kind.report}"]
    lines.append("any fault also takes after=N and share=X, such as NAME=after=3,share=0.5")
    return "\n".join(lines)


def _show(simulation: Simulation, model: str) -> None:
    for service in simulation.services:
        print(f"{service.name:12} {service.url}   pid {simulation.pids[service.name]}")
    print(f"model {model}; try: curl {simulation.entry}/v1/models", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    given = _arguments(argv)
    if given.list_faults:
        print(_fault_lines())
        return 0
    wanted = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, wanted)  # none may come between the start and its clean-up
    try:
        simulation = start(
            prefill=given.prefill,
            decode=given.decode,
            faults=given.fault,
            seed=given.seed,
            dialect=given.dialect,
            model_skill=given.model_skill,
            time_scale=given.time_scale,
            port_base=given.port_base,
        )
    except SimError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    with simulation:
        _show(simulation, simulation.model)
        signal.sigwait(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
