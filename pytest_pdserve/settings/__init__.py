"""pdserve.toml and the named target, read into `Settings`; the only reader of configuration."""

from pytest_pdserve.settings.address import LAYOUT, Layout
from pytest_pdserve.settings.credential import Credential
from pytest_pdserve.settings.settings import Settings, SettingsError, TlsFiles, load
from pytest_pdserve.settings.tables import Budgets, EngineName, Limits

__all__ = [
    "LAYOUT",
    "Budgets",
    "Credential",
    "EngineName",
    "Layout",
    "Limits",
    "Settings",
    "SettingsError",
    "TlsFiles",
    "load",
]
