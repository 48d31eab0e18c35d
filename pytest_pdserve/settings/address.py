"""Texts that name a place, checked and made canonical: URLs, `host`, `host:port`."""

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit


class AddressError(ValueError):
    """What is wrong with an address, for people; never shows what may be a password."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Ports of the common layout of a PD deployment on one host."""

    router: int
    prefill: int
    decode: int


LAYOUT = Layout(router=30001, prefill=30000, decode=30002)
"""What a bare host name stands for: SGLang's default port for prefill and the two after it."""

_LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")
_PATH = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})*")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def base_url(text: str) -> str:
    """The canonical form of an http(s) URL: lower-case host, no default port, no trailing `/` or `/v1`.

    Raises AddressError when it is none, or carries what does not belong there.
    """
    _refuse_odd_characters(text)
    scheme = _SCHEME.match(text)
    if scheme is None or scheme[1].lower() not in ("http", "https"):
        raise AddressError("should be a URL that begins with http:// or https://")
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise AddressError("has no valid host and port (a port is 1 to 65535)") from None
    _refuse_extras(text, parts)
    if not is_host(host, bracketed=parts.netloc.startswith("[")):
        raise AddressError("has no valid host name or address" if host else "names no host")
    if port == 0 or parts.netloc.endswith(":"):
        raise AddressError("has no valid port (1 to 65535)")
    return f"{authority(parts.scheme, host, port)}{_base_path(parts.path)}"


def host_and_port(text: str) -> tuple[str, int | None]:
    """Read `host`, `host:port`, `[v6]`, `[v6]:port` or a plain IPv6 address. Raises AddressError."""
    _refuse_odd_characters(text)
    if "@" in text or "?" in text or "#" in text:
        raise AddressError("is neither a host, host:port, a URL nor a known name")
    if _is_ip(text, 6):
        return text.lower(), None
    found = re.fullmatch(r"(\[[^\[\]]*\]|[^:\[\]]*)(?::(.*))?", text)
    if found is None or not is_host(found[1].strip("[]"), bracketed=found[1].startswith("[")):
        hint = f"; with a path, write http://{text}" if "/" in text and "://" not in text else ""
        raise AddressError(f"is neither a host, host:port, a URL nor a known name{hint}")
    host, port = found[1].strip("[]").lower(), found[2]
    if port is None:
        return host, None
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 1 <= int(port) <= 65535:
        raise AddressError("has no valid port (1 to 65535)")
    return host, int(port)


def authority(scheme: str, host: str, port: int | None) -> str:
    """`scheme://host[:port]`, an IPv6 host in brackets, the scheme's default port left out."""
    shown = f"[{host}]" if ":" in host else host
    default = {"http": 80, "https": 443}[scheme]
    return f"{scheme}://{shown}" + (f":{port}" if port not in (None, default) else "")


def is_host(host: str, *, bracketed: bool = False) -> bool:
    """Whether a text is a host name (ASCII) or an IP address, without brackets."""
    if bracketed or ":" in host:
        return _is_ip(host, 6)
    labels = host.removesuffix(".").split(".")
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        return False
    return _is_ip(host, 4) if labels[-1].isdigit() else True


def slug(address: str) -> str:
    """A name for a host or URL that can be a folder's: `llm-07`, `10.0.0.7-8000`."""
    rest = address.partition("://")[2] or address
    return re.sub(r"[^A-Za-z0-9._]+", "-", rest).strip("-.")[:64] or "target"


def _is_ip(text: str, version: int) -> bool:
    try:
        return "%" not in text and ipaddress.ip_address(text).version == version
    except ValueError:
        return False


def _refuse_odd_characters(text: str) -> None:
    if not text:
        raise AddressError("is empty")
    if any(character.isspace() for character in text):
        raise AddressError("contains white space")
    if not text.isprintable() or "\\" in text:
        raise AddressError("contains a character that no address has")
    if not text.isascii():
        raise AddressError("should be ASCII (a host name in its xn-- form)")


def _refuse_extras(text: str, parts: SplitResult) -> None:
    if "@" in parts.netloc:
        raise AddressError(
            "should carry no user name or password: a key's variable is named by api_key_env in pdserve.toml"
        )
    if "?" in text or "#" in text:
        raise AddressError("should have no query (?) and no fragment (#)")
    if not _PATH.fullmatch(parts.path):
        raise AddressError("has a path with characters that need %-encoding")


def _base_path(path: str) -> str:
    path = path.rstrip("/")
    if re.search(r"/v1/\w", path):
        raise AddressError("should end where the API begins: give it up to /v1, without what follows")
    if any(part in (".", "..") for part in path.split("/")):
        raise AddressError("has . or .. in its path")
    return path.removesuffix("/v1").rstrip("/")
