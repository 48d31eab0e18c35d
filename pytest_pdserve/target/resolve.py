"""From settings to a `Target`: ask the entry what it is, what it serves and who its workers are."""

import httpx

from pytest_pdserve.settings import Settings
from pytest_pdserve.target.target import Target


async def resolve(settings: Settings, client: httpx.AsyncClient) -> Target:
    """Ask the deployment what it is; takes 10 s at most.

    Raises TargetError, one line, for what a person must mend first: a host that does not exist, TLS failures,
    missing rights, a model that is not served, a server of another kind. An entry that refuses or says
    nothing is no such mistake: the target comes back with `unreachable` set.
    """
    raise NotImplementedError
