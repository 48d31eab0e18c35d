"""Runs the clients in turn against one server and prints the medians.

python -m bench [--quick] [--rounds N] [--streams N] [--rate EVENTS_PER_SECOND] [--seconds S]
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from contextlib import contextmanager
from importlib.metadata import version
from statistics import median
from typing import TYPE_CHECKING

from bench.plan import Plan, Sample

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES = ("bare protocol", "ours", "aiohttp", "stock httpx")
LIBRARIES = ("uvloop", "httptools", "httpx", "httpcore", "h11", "aiohttp")
MOST_OF_BARE = 1.7
"""Ours may cost at most so many times the bare protocol's CPU time."""
MOST_OF_STOCK = 0.25
"""Ours may cost at most this share of stock httpx's CPU time."""


def main() -> None:
    """Measure and print."""
    options = _options()
    events = max(1, round(options.rate * options.seconds))
    plan = Plan(options.streams, events, options.rate)
    samples: dict[str, list[Sample]] = {name: [] for name in NAMES}
    with _server() as port:
        for _ in range(options.rounds):
            for name in NAMES:
                samples[name].append(_round(name, port, plan))
    print("\n".join(_table(plan, options.rounds, samples)))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="CPU time and delay per streamed event"
    )
    parser.add_argument("--quick", action="store_true", help="one short round: 2 seconds, 32 streams")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, interleaved over the clients")
    parser.add_argument("--streams", type=int, default=64, help="streams at once")
    parser.add_argument("--rate", type=float, default=50.0, help="events per second of each stream")
    parser.add_argument("--seconds", type=float, default=8.0, help="length of each stream")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.streams, options.seconds = 1, 32, 2.0
    return options


@contextmanager
def _server() -> Iterator[int]:
    command = [sys.executable, "-m", "bench.server"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 -- our own
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.kill()


def _round(name: str, port: int, plan: Plan) -> Sample:
    arguments = [name, str(port), str(plan.streams), str(plan.events), str(plan.rate)]
    done = subprocess.run(  # noqa: S603 -- our own
        [sys.executable, "-m", "bench.run_client", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
        check=True,
    )
    return Sample(**json.loads(done.stdout))


def _table(plan: Plan, rounds: int, samples: dict[str, list[Sample]]) -> Iterator[str]:
    yield f"$ python -m bench {' '.join(sys.argv[1:])}".rstrip()
    each = f"{plan.streams} streams at once, {plan.events} events each at {plan.rate:g}/s"
    yield f"{each}, rounds: {rounds} (medians)"
    yield f"{platform.python_implementation()} {platform.python_version()} on uvloop; " + ", ".join(
        f"{name} {version(name)}" for name in LIBRARIES[:3]
    )
    yield ", ".join(f"{name} {version(name)}" for name in LIBRARIES[3:])
    yield ""
    yield f"{'client':<14} {'CPU us/event':>13} {'x bare':>7} {'x stock':>8} {'p50 delay ms':>13} {'p99 ms':>8}"
    cpu = {name: median(sample.cpu_us for sample in of_one) for name, of_one in samples.items()}
    for name, of_one in samples.items():
        p50 = median(sample.delay_p50_ms for sample in of_one)
        p99 = median(sample.delay_p99_ms for sample in of_one)
        of_bare, of_stock = cpu[name] / cpu["bare protocol"], cpu[name] / cpu["stock httpx"]
        yield f"{name:<14} {cpu[name]:>13.1f} {of_bare:>7.2f} {of_stock:>8.2f} {p50:>13.2f} {p99:>8.2f}"
    yield ""
    yield _judged("ours / bare protocol", cpu["ours"] / cpu["bare protocol"], MOST_OF_BARE)
    yield _judged("ours / stock httpx", cpu["ours"] / cpu["stock httpx"], MOST_OF_STOCK)


def _judged(what: str, ratio: float, most: float) -> str:
    return f"{what}: {ratio:.2f} (goal: at most {most:g}; {'met' if ratio <= most else 'missed'})"


if __name__ == "__main__":
    main()
