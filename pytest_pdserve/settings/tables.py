"""The tables of pdserve.toml as typed, frozen models. What a key means stands in its description."""

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from pytest_pdserve.settings.address import AddressError, base_url, is_host

SIMULATION = "sim"
"""The name of the embedded simulation, which no table can take."""

EngineName = Literal["sglang", "vllm", "dynamo", "openai"]


def _url(text: str) -> str:
    try:
        return base_url(text)
    except AddressError as error:
        raise ValueError(str(error)) from None


Url = Annotated[str, AfterValidator(_url)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


class Table(BaseModel):
    """A table of the file: unknown keys are refused, types are not converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)


class Tls(Table):
    """Files for https; paths are relative to the folder of pdserve.toml."""

    ca: str | None = Field(default=None, description="certificates (PEM) to trust instead of the system's")
    certificate: str | None = Field(default=None, description="our client certificate (PEM)")
    key: str | None = Field(default=None, description="the client certificate's private key (PEM)")

    @model_validator(mode="after")
    def _key_needs_certificate(self) -> Self:
        if self.key is not None and self.certificate is None:
            raise ValueError("key needs certificate beside it")
        return self


class Budgets(Table):
    """Upper limits in seconds that every probe's replies must keep unless a mark says otherwise."""

    ttft: Seconds | None = Field(default=None, description="time to first token, seconds")
    second_token: Seconds | None = Field(default=None, description="time to second token, seconds")
    itl_p99: Seconds | None = Field(
        default=None, description="99th percentile of the gaps between tokens, seconds"
    )
    e2e: Seconds | None = Field(default=None, description="time until the answer is whole, seconds")


class Limits(Table):
    """What the run may not exceed on this target."""

    max_concurrency: Count | None = Field(default=None, description="most requests at once")
    max_prompt_tokens: Count | None = Field(default=None, description="longest prompt, tokens")
    deadline: Seconds | None = Field(default=None, description="longest wait for one answer, seconds")


HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""RFC 9110 5.6.2, token."""

OWN_HEADERS = frozenset({"connection", "content-length", "transfer-encoding", "upgrade", "te", "trailer"})
"""Headers that frame the message and belong to the transport alone."""


def header_value_problem(value: str) -> str | None:
    """Why a text cannot be sent as a header value, in words that do not show it; None when it can."""
    if not value:
        return "is empty"
    if value != value.strip():
        return "begins or ends with white space"
    if not value.isascii() or not value.isprintable():
        return "contains a character that is not printable ASCII"
    return None


class TargetTable(Table):
    """One `[targets.NAME]`."""

    entry: Url = Field(description="URL at which clients come in, base path included")
    router: Url | None = Field(default=None, description="the router's URL, where it is not the entry itself")
    prefill: list[Url] = Field(default=[], description="URLs of the prefill servers")
    decode: list[Url] = Field(default=[], description="URLs of the decode servers")
    engine: EngineName | None = Field(default=None, description="software family; found out when not given")
    model: str | None = Field(
        default=None, min_length=1, description="model to ask for; else the first one offered"
    )
    api_key_env: str | None = Field(
        None, description="name of the environment variable that holds the API key"
    )
    headers: dict[str, SecretStr] = Field(
        default={}, description="further request headers; values are secrets"
    )
    send_key_to: list[str] = Field(default=[], description="other hosts that may get the API key and headers")
    tls: Tls = Field(default=Tls(), description="files for https: ca, certificate, key")
    budgets: Budgets = Field(default=Budgets(), description="latency limits in seconds")
    limits: Limits = Field(default=Limits(), description="what the run may not exceed")
    deterministic: bool = Field(
        False, description="whether the same greedy request always gets the same answer"
    )

    @field_validator("api_key_env")
    @classmethod
    def _variable_name(cls, name: str | None) -> str | None:
        if name is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ValueError(
                "should be the name of an environment variable (A-Z, 0-9, _), not the key itself"
            )
        return name

    @field_validator("headers")
    @classmethod
    def _sendable(cls, headers: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name, value in headers.items():
            if not HEADER_NAME.fullmatch(name):
                raise ValueError("a header name should consist of letters, digits and -")
            if name.lower() in OWN_HEADERS:
                raise ValueError(f"{name} is set by the transport and cannot be given")
            if problem := header_value_problem(value.get_secret_value()):
                raise ValueError(f"the value of {name} {problem}")
        if len({name.lower() for name in headers}) < len(headers):
            raise ValueError("a header is given twice (upper and lower case are the same)")
        return headers

    @field_validator("send_key_to")
    @classmethod
    def _hosts(cls, hosts: list[str]) -> list[str]:
        for host in hosts:
            if not is_host(host):
                raise ValueError("should be host names or addresses, without scheme and port")
        return hosts

    @model_validator(mode="after")
    def _one_authorization(self) -> Self:
        if self.api_key_env and any(name.lower() == "authorization" for name in self.headers):
            raise ValueError("api_key_env and a header Authorization exclude each other")
        return self


def _target_name(name: str) -> str:
    if name == SIMULATION:
        raise ValueError("always means the simulation; take another name")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        raise ValueError("should be 1 to 64 letters, digits, . _ - and begin with a letter or digit")
    return name


class SimTable(Table):
    """`[sim]`: what holds for the simulation, which needs no address."""

    budgets: Budgets = Field(default=Budgets(), description="latency limits in seconds")
    limits: Limits = Field(default=Limits(), description="what the run may not exceed")


class File(Table):
    """The whole pdserve.toml."""

    sim: SimTable = Field(default=SimTable(), description="budgets and limits of the simulation")

    targets: dict[Annotated[str, AfterValidator(_target_name)], TargetTable] = Field(
        default={}, description="a table [targets.NAME] for each deployment"
    )
