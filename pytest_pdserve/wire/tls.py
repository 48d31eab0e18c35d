"""TLS settings for the transport."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl
    from pathlib import Path


def tls_context(*, ca: Path | None, certificate: Path | None, key: Path | None) -> ssl.SSLContext:
    """A verifying client context."""
    raise NotImplementedError
