"""What lets us in: the API key and extra headers, who may get them, and keeping them out of every text."""

import base64
import html
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn
from urllib.parse import quote, quote_plus, urlsplit

from pydantic import SecretStr

MASK = "•••"
SHORTEST_MASKED = 4
"""A value shorter than this (characters) is not masked: replacing it would shred unrelated text."""


class Credential:
    """The secrets of one target: an API key and header values, and the hosts that may be sent them.

    They go to the origins that the settings name (entry, router, workers), to any port of the entry's host
    (but not in the clear if the entry is https), and to the hosts of `send_key_to`. Nobody else gets them,
    least of all an address that a router announces.
    """

    __slots__ = ("_api_key", "_entry", "_headers", "_hosts", "_origins", "_pattern", "_variable")

    def __init__(
        self,
        *,
        api_key: SecretStr | None = None,
        variable: str = "API_KEY",
        headers: Mapping[str, SecretStr] | None = None,
        entry: str | None = None,
        named: Iterable[str] = (),
        send_key_to: Iterable[str] = (),
    ) -> None:
        """`variable` is the shell variable that stands for the API key where a request is shown."""
        self._api_key = api_key
        self._headers = dict(headers or {})
        self._entry = _origin(entry) if entry else None
        self._origins = frozenset(_origin(url) for url in named)
        self._hosts = frozenset(host.lower() for host in send_key_to)
        self._variable = variable
        forms = {form for secret in self._secrets() for form in _forms(secret)}
        longest_first = sorted(forms, key=lambda form: (-len(form), form))
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if forms else None

    @property
    def empty(self) -> bool:
        """Whether there is neither an API key nor a header."""
        return self._api_key is None and not self._headers

    def trusts(self, url: str) -> bool:
        """Whether the secrets may be sent to this URL."""
        scheme, host, _ = origin = _origin(url)
        if origin in self._origins or host in self._hosts:
            return True
        if self._entry is None:
            return False
        return host == self._entry[1] and (scheme == "https" or self._entry[0] == "http")

    def headers_for(self, url: str) -> dict[str, str]:
        """Request headers for this URL, values in the clear; empty when it may not get them."""
        if not self.trusts(url):
            return {}
        headers = {name: value.get_secret_value() for name, value in self._headers.items()}
        if self._api_key is not None:
            headers["Authorization"] = f"Bearer {self._api_key.get_secret_value()}"
        return headers

    def variables_for(self, url: str) -> dict[str, str]:
        """What `headers_for` gives, with a shell variable in place of each secret."""
        if not self.trusts(url):
            return {}
        headers = {name: f"${re.sub('[^A-Z0-9]', '_', name.upper())}" for name in self._headers}
        if self._api_key is not None:
            headers["Authorization"] = f"Bearer ${self._variable}"
        return headers

    def mask(self, text: str) -> str:
        """The text with every secret value in it, plain or encoded, replaced by `•••`."""
        return text if self._pattern is None else self._pattern.sub(MASK, text)

    def _secrets(self) -> Iterable[str]:
        if self._api_key is not None:
            yield self._api_key.get_secret_value()
        for value in self._headers.values():
            secret = value.get_secret_value()
            yield secret
            _, blank, rest = secret.partition(" ")
            if blank:  # "Bearer abc": what follows the scheme is the secret, and may turn up without it
                yield rest.strip()

    def __repr__(self) -> str:
        return f"Credential(api_key={MASK if self._api_key else None}, headers={sorted(self._headers)})"

    def __copy__(self) -> "Credential":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "Credential":
        return self

    def __reduce__(self) -> NoReturn:
        """Refuse pickling: secrets do not travel between processes."""
        raise TypeError("a credential does not travel: use Settings.public() and Settings.from_public()")


def _origin(url: str) -> tuple[str, str, int]:
    parts = urlsplit(url)
    return (
        parts.scheme,
        (parts.hostname or "").lower(),
        parts.port or (443 if parts.scheme == "https" else 80),
    )


def _forms(secret: str) -> Iterable[str]:
    """The ways in which a secret may turn up in text, none shorter than what is masked at all."""
    if len(secret) < SHORTEST_MASKED:
        return
    yield secret
    escaped = {json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1], repr(secret)[1:-1]}
    yield from escaped
    yield from (form.replace("/", "\\/") for form in escaped)
    yield from (html.escape(secret), html.escape(secret, quote=False))
    for quoted in (quote(secret, safe=""), quote(secret), quote_plus(secret)):
        yield quoted
        yield re.sub("%[0-9A-F]{2}", lambda found: found[0].lower(), quoted)
    yield from _base64_forms(secret.encode())


def _base64_forms(secret: bytes) -> Iterable[str]:
    """What base64 makes of the secret at each of the three alignments that it can have within longer data.

    Only characters that depend on nothing but the secret are taken: they are found whatever surrounds it.
    """
    for before in range(3):
        total = before + len(secret)
        start = -(-before * 8 // 6)
        end = total * 8 // 6
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            form = encode(bytes(before) + secret).decode()[start:end]
            if len(form) >= SHORTEST_MASKED:
                yield form
