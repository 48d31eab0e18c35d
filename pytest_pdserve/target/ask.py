"""One bounded GET to a service, and its answer read as JSON or shown to people."""

import re
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec

from pytest_pdserve.settings import Credential, one_line
from pytest_pdserve.wire import Exchange, Outcome, exchange

MAX_ANSWER = 4 * 1024 * 1024
"""Bytes; Dynamo's /openapi.json, the longest answer asked for, has a tenth of it."""

SHOWN = 120
"""Characters of a foreign answer that a message shows at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a service said to one GET."""

    exchange: Exchange
    json: Any
    """The parsed body; None when it is not JSON or did not come."""
    credential: Credential

    @property
    def came(self) -> bool:
        """Whether the service answered at all, with whatever status."""
        return self.exchange.status is not None

    @property
    def ok(self) -> bool:
        """Whether it answered 2xx with a whole body."""
        return self.exchange.outcome is Outcome.COMPLETED

    @property
    def status(self) -> int | None:
        """The HTTP status, None without an answer."""
        return self.exchange.status

    @property
    def reason(self) -> str:
        """Why the exchange did not complete, in one line."""
        return one_line(self.exchange.reason)

    def shown(self) -> str:
        """The body for people: one line, cut, no secrets; an HTML page by its title."""
        text = bytes(self.exchange.body.data[: 64 * 1024]).decode(errors="replace")
        if not text.strip():
            return "an empty body"
        if re.match(r"\s*<(!doctype html|html|head|body)\b", text, re.IGNORECASE):
            title = re.search(r"<title[^>]*>([^<]*)</title>", text, re.IGNORECASE)
            named = f' titled "{self._cut(title[1])}"' if title and title[1].strip() else ""
            return f"an HTML page{named}"
        return f'"{self._cut(text)}"'

    def _cut(self, text: str) -> str:
        # Masked before it is cut, lest half a secret remains.
        line = one_line(" ".join(self.credential.mask(text).split(" ")).strip())
        return line if len(line) <= SHOWN else line[: SHOWN - 1] + "…"


async def ask(client: httpx.AsyncClient, credential: Credential, url: str, *, deadline: float) -> Answer:
    """GET `url` within `deadline` seconds, with the secrets that its host may have."""
    headers = {"Accept": "application/json", **credential.headers_for(url)}
    request = client.build_request("GET", url, headers=headers)
    done = await exchange(client, request, deadline=deadline, max_bytes=MAX_ANSWER)
    return Answer(exchange=done, json=_json(done), credential=credential)


async def refuses_chat(
    client: httpx.AsyncClient, credential: Credential, entry: str, *, deadline: float
) -> bool:
    """Whether the entry answers 401 or 403 to a chat request that is too empty to make it compute."""
    url = f"{entry}/v1/chat/completions"
    request = client.build_request("POST", url, headers=credential.headers_for(url), json={})
    done = await exchange(client, request, deadline=deadline, max_bytes=MAX_ANSWER)
    return done.status in (401, 403)


def _json(done: Exchange) -> Any:
    if done.outcome not in (Outcome.COMPLETED, Outcome.REFUSED):
        return None
    try:
        return msgspec.json.decode(bytes(done.body.data))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
