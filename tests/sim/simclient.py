"""A raw client for the tests of the simulator: what it says is what came over the wire."""

from __future__ import annotations

import http.client
import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable

CALL_S = 20.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back for one request."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[str]:
        """The data of every server-sent event."""
        return [part.removeprefix("data: ") for part in self.body.decode().split("\n\n") if part]

    @property
    def chunks(self) -> list[dict[str, Any]]:
        """Every event but the last, which must be [DONE]."""
        *chunks, done = self.events
        assert done == "[DONE]"
        return [json.loads(chunk) for chunk in chunks]

    @property
    def text(self) -> str:
        """A chat answer's text, streamed or not."""
        if self.headers["content-type"].startswith("text/event-stream"):
            deltas = [choice["delta"] for chunk in self.chunks for choice in chunk["choices"]]
            return "".join(delta.get("content") or "" for delta in deltas)
        return str(self.json["choices"][0]["message"]["content"])


def call(
    base: str,
    path: str,
    body: Any = None,
    *,
    raw: bytes | None = None,
    method: str | None = None,
    timeout_s: float = CALL_S,
) -> Answer:
    """One request on a fresh connection; `body` is sent as JSON, `raw` as it is."""
    connection = http.client.HTTPConnection(urlsplit(base).netloc, timeout=timeout_s)
    try:
        content = raw if raw is not None else None if body is None else json.dumps(body).encode()
        headers = {} if content is None else {"Content-Type": "application/json"}
        connection.request(method or ("GET" if content is None else "POST"), path, content, headers)
        response = connection.getresponse()
        headers = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, headers, response.read())
    finally:
        connection.close()


def chat(base: str, *texts: str, timeout_s: float = CALL_S, **more: Any) -> Answer:
    """A chat with turns spoken by user, assistant, user ... in this order."""
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
    body = {"model": "m", "messages": messages, "max_tokens": 32, **more}
    return call(base, "/v1/chat/completions", body, timeout_s=timeout_s)


def copying(code: str) -> tuple[str, ...]:
    """A conversation of examples that any model goes on by saying the code."""
    return ("code: 234299", "234299", "code: 881734", "881734", f"code: {code}")


def gauge(base: str, name: str) -> float:
    """The sum of a metric's samples on one worker."""
    lines = call(base, "/metrics").body.decode().splitlines()
    values = [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{name} ", f"{name}{{"))]
    assert values, f"no metric {name}"
    return sum(values)


def eventually(check: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Whether a condition comes true within a time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if check():
            return True
        time.sleep(0.02)
    return check()
