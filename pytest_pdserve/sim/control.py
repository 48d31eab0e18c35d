"""The control endpoint of every simulated process: which faults are active, and setting them.

`GET /sim/faults` tells, `PUT /sim/faults` with a JSON list of fault texts replaces them. Only clients on
loopback are heard.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

import msgspec
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pytest_pdserve.sim.faults import FaultError, Switchboard

if TYPE_CHECKING:
    from starlette.requests import Request

PATH = "/sim/faults"


def control_route(faults: Switchboard) -> Route:
    """The control endpoint for one process's faults."""

    async def control(request: Request) -> Response:
        if request.client is None or not ipaddress.ip_address(request.client.host).is_loopback:
            return Response(status_code=403)
        if request.method == "PUT":
            try:
                faults.set(msgspec.json.decode(await request.body(), type=list[str]))
            except (FaultError, msgspec.DecodeError) as error:
                return JSONResponse({"error": str(error)}, 400)
        return JSONResponse(list(faults.texts))

    return Route(PATH, control, methods=["GET", "PUT"])
