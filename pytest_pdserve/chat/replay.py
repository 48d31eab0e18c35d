"""How to send a request again by hand."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_pdserve.chat.request import ChatRequest


def curl(url: str, request: ChatRequest, *, variables: Mapping[str, str]) -> str:
    """A curl command that sends `request` to `url`.

    `variables` maps a header to the text of its value with a shell variable in place of each secret, such as
    `{"Authorization": "Bearer $OPENAI_API_KEY"}`: the secret itself never stands in the command.
    """
    headers = "".join(f' -H "{name}: {value}"' for name, value in variables.items())
    body = msgspec.json.encode(request.body).decode()
    return f"curl -N {shlex.quote(url)} -H 'Content-Type: application/json'{headers} -d {shlex.quote(body)}"
