"""`Settings`: everything that was said about a target, whether on the command line or in pdserve.toml."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_pdserve.settings.credential import Credential
from pytest_pdserve.settings.tables import Budgets, EngineName, Limits


class SettingsError(ValueError):
    """One line for people: what is wrong with the target or the file, where, and what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Absolute paths of the files for https, None where not given."""

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is known of a target before anybody has asked it anything."""

    name: str
    """The target's name, fit for a folder: its name in the file, else made from the host."""
    entry: str | None
    """Where clients come in; None for the simulation until it has started."""
    simulated: bool = False
    layout: bool = False
    """A bare host was given, so workers are assumed at the ports of `LAYOUT`."""
    router: str | None = None
    prefill: tuple[str, ...] = ()
    decode: tuple[str, ...] = ()
    engine: EngineName | None = None
    model: str | None = None
    tls: TlsFiles = TlsFiles()
    budgets: Budgets = Budgets()
    limits: Limits = Limits()
    deterministic: bool = False
    credential: Credential = Credential()
    file: Path | None = None
    """The pdserve.toml that was read, absolute."""
    listed: bool = False
    """Whether `name` is a target of that file."""
    known: tuple[str, ...] = ()
    """All names in that file."""

    def public(self) -> dict[str, Any]:
        """A JSON-able form without any secret, for `from_public` in another process."""
        raise NotImplementedError

    @classmethod
    def from_public(cls, data: dict[str, Any], environ: Mapping[str, str]) -> "Settings":
        """Settings from their public form; secrets are read again from the file and the environment.

        Raises SettingsError when they are no longer there.
        """
        raise NotImplementedError


def load(target: str, *, config: Path | None, folder: Path, environ: Mapping[str, str]) -> Settings:
    """Read what TARGET stands for: `sim`, a host, `host:port`, a URL, or a name in pdserve.toml.

    The file is `config`, else the first pdserve.toml in `folder` or above it. A file that is wrong is an error
    for any target, so that it is not noticed first on the day that it is needed. Raises SettingsError.
    """
    raise NotImplementedError
