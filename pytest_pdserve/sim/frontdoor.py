"""What sglang-router says itself: its checks of requests and the errors it makes of workers' failures."""

from __future__ import annotations

from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import Response

from pytest_pdserve.sim.plan import Role, Service

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TEXT = "text/plain; charset=utf-8"
CORS = {
    "vary": "origin, access-control-request-method, access-control-request-headers",
    "access-control-allow-origin": "*",
    "access-control-expose-headers": "*",
}
_HOP_HEADERS = frozenset({"transfer-encoding", "connection", "keep-alive"})


class Refusal(Exception):
    """A request that gets no worker's answer: what the client is told instead."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status_code)
        self.response = response


def dated(response: Response) -> Response:
    """A response with the date the router adds to what it says itself."""
    response.headers["date"] = formatdate(usegmt=True)
    return response


def json_response(body: Any, status: int = 200) -> Response:
    """A compact JSON response."""
    return Response(msgspec.json.encode(body), status, media_type="application/json")


def text_response(text: str | bytes, status: int = 200) -> Response:
    """A plain text response."""
    return Response(text, status, media_type=TEXT)


def checked(raw: bytes, content_type: str, *, chat: bool) -> dict[str, Any]:
    """The request body as an object that has what the router itself insists on. Raises Refusal."""
    if not content_type.startswith("application/json"):
        if not chat:
            raise Refusal(text_response("Expected request with `Content-Type: application/json`", 415))
        raise _invalid("Missing Content-Type: application/json header")
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if not chat:
            raise Refusal(text_response(f"Failed to parse the request body as JSON: {error}", 400)) from None
        raise _invalid(f"JSON syntax error: Failed to parse the request body as JSON: {error}") from None
    wrong = _wrong_shape(body, ("messages",) if chat else ("model", "prompt"), len(raw))
    if wrong and not chat:
        raise Refusal(
            text_response(f"Failed to deserialize the JSON body into the target type: {wrong}", 422)
        )
    if wrong:
        raise _invalid(
            f"Invalid JSON data: Failed to deserialize the JSON body into the target type: {wrong}"
        )
    if chat:
        _check_chat(body)
    assert isinstance(body, dict)
    return body


def _wrong_shape(body: Any, needed: Sequence[str], column: int) -> str:
    if not isinstance(body, dict):
        return f"invalid type, expected a map at line 1 column {column}"
    for name in needed:
        if name not in body:
            return f"missing field `{name}` at line 1 column {column}"
    if "messages" in needed and not isinstance(body["messages"], list):
        return f"messages: invalid type, expected a sequence at line 1 column {column}"
    return ""


def _check_chat(body: Mapping[str, Any]) -> None:
    if not body["messages"]:
        raise _invalid('messages: Validation error: messages cannot be empty [{"value": Array []}]', 400)
    for name in ("max_completion_tokens", "max_tokens"):
        limit = body.get(name)
        if isinstance(limit, int) and limit < 1:
            detail = f'range [{{"min": Number(1), "value": Number({limit})}}]'
            raise _invalid(f"max_completion_tokens: Validation error: {detail}", 400)


def _invalid(message: str, code: str | int = "json_parse_error") -> Refusal:
    return Refusal(
        json_response({"error": {"message": message, "type": "invalid_request_error", "code": code}}, 400)
    )


def failure(status: int, code: str, message: str) -> Refusal:
    """The router's own error body, with the header that names its code."""
    phrase = HTTPStatus(status).phrase
    response = json_response({"error": {"type": phrase, "code": code, "message": message}}, status)
    response.headers["x-smg-error-code"] = code
    return Refusal(response)


def refused(
    worker: Service, status: int, headers: Sequence[tuple[bytes, bytes]], raw: bytes, *, stream: bool
) -> Refusal:
    """A worker's error status, as the router passes it on.

    On a streamed request decode's error comes as a broken event: single quotes, and cut off at the length of the
    worker's own body, whose headers the router keeps.
    """
    try:
        told: Any = msgspec.json.decode(raw)
    except msgspec.DecodeError:
        told = raw.decode("utf-8", "replace")
    if stream and worker.role is Role.DECODE:
        event = b"data: {'error': " + msgspec.json.encode({"message": told, "status": status}) + b"}\n\n"
        return Refusal(
            Response(event[: len(raw)], status, passed_on(headers) | {"content-type": "text/event-stream"})
        )
    message = str(told["message"]) if isinstance(told, dict) and "message" in told else str(told)
    reason = "internal_error" if status >= 500 else HTTPStatus(status).phrase.lower().replace(" ", "_")
    return failure(status, f"{worker.role}_{reason}", message)


def unreachable(worker: Service, path: str) -> Refusal:
    """A worker that does not answer at all."""
    hint = ". This will cause decode timeout." if worker.role is Role.PREFILL else ""
    message = (
        f"{worker.role.capitalize()} server error: error sending request for url ({worker.url}{path}){hint}"
    )
    return failure(502, f"{worker.role}_server_error", message)


def passed_on(headers: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    """A worker's response headers without those of its own connection."""
    named = ((name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in headers)
    return {name: value for name, value in named if name not in _HOP_HEADERS}
