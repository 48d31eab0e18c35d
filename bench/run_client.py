"""One client in its own process: a round, and its numbers as JSON on stdout."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict
from time import process_time

import uvloop

from bench.clients import CLIENTS, ROUND_BOUND, Client
from bench.plan import Plan, Sample, sample


async def _measure(client: Client, port: int, plan: Plan) -> Sample:
    await asyncio.wait_for(client(port, Plan(1, 5, 100.0)), ROUND_BOUND)  # imports, caches
    before = process_time()
    delays = await asyncio.wait_for(client(port, plan), ROUND_BOUND)
    return sample(process_time() - before, delays, plan.total)


def main(name: str, port: str, streams: str, events: str, rate: str) -> None:
    """Run the client called `name`."""
    plan = Plan(int(streams), int(events), float(rate))
    measured = uvloop.run(_measure(CLIENTS[name], int(port), plan))
    json.dump(asdict(measured), sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
