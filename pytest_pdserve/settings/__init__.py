"""pdserve.toml and the named target, read into `Settings`; the only reader of configuration."""

from pytest_pdserve.settings.address import LAYOUT, AddressError, Layout, authority, base_url
from pytest_pdserve.settings.credential import Credential
from pytest_pdserve.settings.file import SettingsError, did_you_mean, one_line
from pytest_pdserve.settings.settings import Settings, TlsFiles, load
from pytest_pdserve.settings.tables import Budgets, EngineName, Limits

__all__ = [
    "LAYOUT",
    "AddressError",
    "Budgets",
    "Credential",
    "EngineName",
    "Layout",
    "Limits",
    "Settings",
    "SettingsError",
    "TlsFiles",
    "authority",
    "base_url",
    "did_you_mean",
    "load",
    "one_line",
]
