"""Any server of which nothing is known but that it speaks the OpenAI API."""

from typing import Final

from pytest_pdserve.engines.engine import Engine

OPENAI: Final = Engine(
    name="openai",
    owned_by=frozenset(),
    ready=dict.fromkeys(("proxy", "router", "prefill", "decode"), ("/v1/models",)),
)
