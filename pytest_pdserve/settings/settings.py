"""`Settings`: everything that was said about a target, whether on the command line or in pdserve.toml."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from pytest_pdserve.settings.address import LAYOUT, AddressError, authority, base_url, host_and_port, slug
from pytest_pdserve.settings.credential import Credential
from pytest_pdserve.settings.file import SettingsError, did_you_mean, find, read
from pytest_pdserve.settings.tables import (
    SIMULATION,
    Budgets,
    EngineName,
    File,
    Limits,
    TargetTable,
    header_value_problem,
)

MAX_TARGET_LENGTH = 2048


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
    budgets: Budgets = field(default_factory=Budgets)
    limits: Limits = field(default_factory=Limits)
    deterministic: bool = False
    credential: Credential = field(default_factory=Credential, compare=False)
    file: Path | None = None
    """The pdserve.toml that was read, absolute."""
    listed: bool = False
    """Whether `name` is a target of that file."""
    known: tuple[str, ...] = ()
    """All names in that file."""

    def public(self) -> dict[str, Any]:
        """A JSON-able form without any secret, for `from_public` in another process."""
        return {
            "name": self.name,
            "entry": self.entry,
            "simulated": self.simulated,
            "layout": self.layout,
            "router": self.router,
            "prefill": list(self.prefill),
            "decode": list(self.decode),
            "engine": self.engine,
            "model": self.model,
            "tls": {part: _text(getattr(self.tls, part)) for part in TlsFiles.__slots__},
            "budgets": self.budgets.model_dump(),
            "limits": self.limits.model_dump(),
            "deterministic": self.deterministic,
            "file": _text(self.file),
            "listed": self.listed,
            "known": list(self.known),
        }

    @classmethod
    def from_public(cls, data: Mapping[str, Any], environ: Mapping[str, str]) -> "Settings":
        """Settings from their public form; secrets are read again from the file and the environment.

        Raises SettingsError when they are no longer there.
        """
        file = _path(data["file"])
        credential = Credential()
        if data["listed"] and file is not None:
            name, targets = data["name"], read(file).targets
            if name not in targets:
                raise SettingsError(f"{file}: [targets.{name}] has gone since the run began")
            credential = _credential(targets[name], environ)
        return cls(
            name=data["name"],
            entry=data["entry"],
            simulated=data["simulated"],
            layout=data["layout"],
            router=data["router"],
            prefill=tuple(data["prefill"]),
            decode=tuple(data["decode"]),
            engine=data["engine"],
            model=data["model"],
            tls=TlsFiles(**{part: _path(text) for part, text in data["tls"].items()}),
            budgets=Budgets(**data["budgets"]),
            limits=Limits(**data["limits"]),
            deterministic=data["deterministic"],
            credential=credential,
            file=file,
            listed=data["listed"],
            known=tuple(data["known"]),
        )


def load(target: str, *, config: Path | None, folder: Path, environ: Mapping[str, str]) -> Settings:
    """Read what TARGET stands for: `sim`, a host, `host:port`, a URL, or a name in pdserve.toml.

    The file is `config`, else the first pdserve.toml in `folder` or above it. A file that is wrong is an
    error for any target, so that it is noticed before the day when it is needed. Raises SettingsError.
    """
    path = (folder / config).absolute() if config is not None else find(folder)
    file = read(path) if path is not None else File()
    known = tuple(file.targets)
    if target == SIMULATION:
        return Settings(
            name=SIMULATION,
            entry=None,
            simulated=True,
            budgets=file.sim.budgets,
            limits=file.sim.limits,
            file=path,
            known=known,
        )
    if path is not None and target in file.targets:
        return _listed(target, file.targets[target], path, known, environ)
    try:
        name, entry, layout = _address(target)
    except AddressError as error:
        may_be_a_name = known and re.fullmatch(r"[\w .-]+", target)
        names = f" (known: {', '.join(known)}).{did_you_mean(target, known)}" if may_be_a_name else ""
        raise SettingsError(f"{_shown(target)} {error}{names}") from None
    return Settings(name=name, entry=entry, layout=layout, file=path, known=known)


def _address(target: str) -> tuple[str, str, bool]:
    """A name for the target, its entry's URL, and whether the common layout of ports is meant."""
    if len(target) > MAX_TARGET_LENGTH:
        raise AddressError(f"is longer than {MAX_TARGET_LENGTH} characters")
    if "://" in target:
        entry = base_url(target)
        return slug(entry), entry, False
    host, port = host_and_port(target)
    entry = authority("http", host, port or LAYOUT.router)
    return slug(host if port is None else entry), entry, port is None


def _listed(
    name: str, table: TargetTable, file: Path, known: tuple[str, ...], environ: Mapping[str, str]
) -> Settings:
    try:
        credential = _credential(table, environ)
    except SettingsError as error:
        raise SettingsError(f"{file}: [targets.{name}] {error}") from None
    return Settings(
        name=name,
        entry=table.entry,
        router=table.router,
        prefill=tuple(table.prefill),
        decode=tuple(table.decode),
        engine=table.engine,
        model=table.model,
        tls=TlsFiles(**{part: file.parent / text for part, text in table.tls if text is not None}),
        budgets=table.budgets,
        limits=table.limits,
        deterministic=table.deterministic,
        credential=credential,
        file=file,
        listed=True,
        known=known,
    )


def _credential(table: TargetTable, environ: Mapping[str, str]) -> Credential:
    variable = table.api_key_env
    return Credential(
        api_key=_api_key(variable, environ) if variable is not None else None,
        variable=variable or "API_KEY",
        headers=table.headers,
        entry=table.entry,
        named=[url for url in (table.entry, table.router, *table.prefill, *table.decode) if url is not None],
        send_key_to=table.send_key_to,
    )


def _api_key(variable: str, environ: Mapping[str, str]) -> SecretStr:
    # A key like hf_aBc… would pass as a variable's name; so such a name is not shown: it may be the key.
    shown = variable if re.fullmatch("[A-Z_][A-Z0-9_]*", variable) else "a variable"
    if variable not in environ:
        raise SettingsError(f"api_key_env names {shown}, which is not set")
    if problem := header_value_problem(environ[variable]):
        raise SettingsError(f"api_key_env names {shown}, whose value {problem}")
    return SecretStr(environ[variable])


def _shown(target: str) -> str:
    """The target in quotes, unless it may hold a password or key."""
    if not target or any(mark in target for mark in "@?#"):
        return "the target"
    return f'"{target}"' if len(target) <= 80 else f'"{target[:79]}…"'


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)
