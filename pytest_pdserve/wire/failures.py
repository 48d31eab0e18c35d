"""What can go wrong on a connection, as httpx exceptions that know how the bytes ended."""

from __future__ import annotations

import errno
import ssl
from enum import StrEnum

import httpx


class Ending(StrEnum):
    """How the response's bytes ended on the wire."""

    COMPLETE = "complete"
    """The message's own framing said that it was over (or its status or method allows no body)."""
    FIN = "FIN"
    """The server closed the connection in order; for a body without a length that is its regular end."""
    RST = "RST"
    """The connection was reset."""
    LOST = "lost"
    """The connection failed in another way: TLS error, network unreachable, keep-alive timeout."""
    OPEN = "open"
    """The connection was still open when the exchange was given up: deadline, size limit, garbage."""
    NONE = "none"
    """There was no connection: the name, the port, the TLS handshake or the pool failed."""


class Garbled(httpx.RemoteProtocolError):
    """What came is not HTTP/1.x as we understand it, or goes beyond a limit."""


class ClosedEarly(httpx.RemoteProtocolError):
    """The server closed the connection in order (FIN) before the message was whole."""


class Reset(httpx.ReadError):
    """The server reset the connection (RST) before the message was whole."""


class Lost(httpx.ReadError):
    """The connection failed otherwise before the message was whole."""


def ending_of(error: httpx.TransportError) -> Ending:
    """How the bytes ended, given what the transport raised."""
    match error:
        case ClosedEarly():
            return Ending.FIN
        case Reset():
            return Ending.RST
        case Lost():
            return Ending.LOST
        case httpx.ConnectError() | httpx.ConnectTimeout() | httpx.PoolTimeout():
            return Ending.NONE
        case _:
            return Ending.OPEN


def lost(error: BaseException | None, place: str) -> Reset | Lost | ClosedEarly:
    """The failure for a connection that asyncio reported as lost with `error`, `place` further on."""
    if error is None:
        return ClosedEarly(f"connection closed {place}")
    if isinstance(error, ConnectionResetError | BrokenPipeError | ConnectionAbortedError):
        return Reset(f"connection reset by the server (RST) {place}")
    return Lost(f"connection failed {place}: {cause(error)}")


def cause(error: BaseException) -> str:
    """An operating system's or TLS error in a few words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS certificate not accepted: {error.verify_message.rstrip('.')}"
    if isinstance(error, ssl.SSLError):
        return _tls_cause(error)
    if isinstance(error, OSError) and error.errno in _WORDS:
        return _WORDS[error.errno]
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text)


def _tls_cause(error: ssl.SSLError) -> str:
    reason = error.reason or str(error)
    if reason in {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"}:
        return "TLS failed: the server doesn't speak TLS there (is it plain http?)"
    if reason == "TLSV13_ALERT_CERTIFICATE_REQUIRED":
        return "TLS failed: the server wants a client certificate"
    words = reason.lower().replace("_", " ")
    return f"TLS failed: {words}"


_WORDS = {
    errno.ECONNREFUSED: "connection refused",
    errno.ECONNRESET: "connection reset",
    errno.EHOSTUNREACH: "host unreachable",
    errno.ENETUNREACH: "network unreachable",
    errno.ETIMEDOUT: "no answer to the connection attempt",
    errno.EMFILE: "this process has no file descriptors left (ulimit -n)",
    errno.EADDRNOTAVAIL: "this machine has no local port or address left for it",
}
