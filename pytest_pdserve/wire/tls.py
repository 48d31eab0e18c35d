"""TLS settings for the transport."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def tls_context(*, ca: Path | None, certificate: Path | None, key: Path | None) -> ssl.SSLContext:
    """A verifying client context for HTTP/1.1.

    With `ca` (PEM), only the certificate authorities in that file are trusted, else the system's.
    `certificate` (PEM, with its chain) and `key` (PEM, unencrypted; None if it is in the same file) identify us.
    Raises ValueError with one line that names the file and says what is wrong with it.
    """
    for path in (ca, certificate, key):
        if path is not None:
            _check_readable(path)
    if key is not None and certificate is None:
        raise ValueError(f"{key}: a key without a certificate")
    try:
        context = ssl.create_default_context(cafile=ca)
    except ssl.SSLError:
        raise ValueError(f"{ca}: no certificate in PEM format in it") from None
    context.set_alpn_protocols(["http/1.1"])
    if certificate is not None:
        _load_own(context, certificate, key)
    return context


def _load_own(context: ssl.SSLContext, certificate: Path, key: Path | None) -> None:
    def refuse() -> str:
        raise ValueError(f"{key or certificate}: the key is encrypted; an unencrypted one is needed")

    try:
        context.load_cert_chain(certificate, key, password=refuse)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ValueError(f"{key or certificate}: the key doesn't belong to {certificate}") from None
        raise ValueError(f"{_culprit(certificate, key)}") from None


def _culprit(certificate: Path, key: Path | None) -> str:
    """Which of the two files it is: OpenSSL doesn't say."""
    if b"-----BEGIN CERTIFICATE-----" not in certificate.read_bytes():
        return f"{certificate}: no certificate in PEM format in it"
    if b"PRIVATE KEY-----" not in (key or certificate).read_bytes():
        return f"{key or certificate}: no private key in PEM format in it"
    return f"{certificate}: certificate or key not readable" + (f" (key: {key})" if key else "")


def _check_readable(path: Path) -> None:
    try:
        with path.open("rb"):
            return
    except OSError as error:
        raise ValueError(f"{path}: {(error.strerror or str(error)).lower()}") from None
