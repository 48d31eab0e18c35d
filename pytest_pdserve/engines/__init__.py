"""One module an engine family: its paths, its names and its error texts."""

from typing import Final

from pytest_pdserve.engines.dynamo import DYNAMO
from pytest_pdserve.engines.engine import STARTED, WORKERS_PATH, Engine, Handoff, Metric, VersionSource
from pytest_pdserve.engines.meaning import Meaning
from pytest_pdserve.engines.openai import OPENAI
from pytest_pdserve.engines.sglang import SGLANG
from pytest_pdserve.engines.vllm import VLLM

ENGINES: Final = {engine.name: engine for engine in (SGLANG, VLLM, DYNAMO, OPENAI)}
"""Every family by name."""

__all__ = [
    "DYNAMO",
    "ENGINES",
    "OPENAI",
    "SGLANG",
    "STARTED",
    "VLLM",
    "WORKERS_PATH",
    "Engine",
    "Handoff",
    "Meaning",
    "Metric",
    "VersionSource",
]
