"""`python -m tests.lab LANE ACTION`: real deployments on this machine, for the suites to run against."""

import argparse
import sys

from tests.lab import keeper
from tests.lab.deployment import StartError
from tests.lab.dynamo_lane import DynamoLane
from tests.lab.environment import SetupError
from tests.lab.lane import Lane
from tests.lab.network import IsolationError
from tests.lab.vllm_lane import VllmLane

LANES: dict[str, Lane] = {lane.name: lane for lane in (VllmLane(), DynamoLane())}
ACTIONS = {
    "setup": "install packages and make the model, once",
    "up": "set up, start, stay until Ctrl-C or `down`",
    "down": "stop what `up` or `run` keeps up",
    "run": "set up, start, run the checks, stop",
}


def main() -> int:
    """Do what the command line says and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab", description=__doc__)
    parser.add_argument("lane", choices=LANES)
    parser.add_argument(
        "action", choices=ACTIONS, help="; ".join(f"{name}: {what}" for name, what in ACTIONS.items())
    )
    asked, more = parser.parse_known_args()
    if more and asked.action != "run":
        parser.error(f"only `run` takes more arguments, for pytest: {' '.join(more)}")
    lane = LANES[asked.lane]
    try:
        match asked.action:
            case "setup":
                keeper.setup(lane)
            case "up":
                return keeper.up(lane)
            case "down":
                keeper.down(lane)
            case _:
                return keeper.run(lane, more)
    except (SetupError, StartError, IsolationError, keeper.BusyError) as failed:
        print(f"lab: {failed}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
