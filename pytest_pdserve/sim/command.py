"""The simulator's command line, for a shell and for whoever passes one on."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, NoReturn

from pytest_pdserve.sim.launch import SimError, Simulation, start

if TYPE_CHECKING:
    from collections.abc import Sequence


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SimError(message)


def read_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Read a command line; --help prints and leaves. Raises SimError, one line, for anything wrong in it."""
    parser = _Parser(
        prog="python -m pytest_pdserve.sim",
        description="Run a simulated prefill-decode deployment on loopback until Ctrl-C.",
    )
    parser.add_argument("--dialect", default="sglang", help="the engine family to behave like")
    parser.add_argument("--prefill", type=int, default=1, metavar="N", help="how many prefill workers")
    parser.add_argument("--decode", type=int, default=1, metavar="M", help="how many decode workers")
    parser.add_argument("--proxy", action="store_true", help="put a proxy in front of the router")
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
    parser.add_argument(
        "--kv-tokens", type=int, default=400_000, metavar="N", help="room for KV in each worker"
    )
    parser.add_argument("--seed", type=int, default=0, help="decides everything random")
    parser.add_argument("--model-skill", default="copy", help="copy, or none for random text")
    parser.add_argument(
        "--time-scale", type=float, default=1.0, metavar="X", help="multiply every simulated time by X"
    )
    return parser.parse_args(argv)


def start_as(given: argparse.Namespace) -> Simulation:
    """Start the deployment that `read_arguments` read. Raises SimError."""
    return start(
        prefill=given.prefill,
        decode=given.decode,
        proxy=given.proxy,
        faults=given.fault,
        seed=given.seed,
        dialect=given.dialect,
        model_skill=given.model_skill,
        time_scale=given.time_scale,
        port_base=given.port_base,
        kv_tokens=given.kv_tokens,
    )
