"""What a dialect must be able to say; the modules `sglang` and `vllm` can."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_pdserve.sim.ask import Ask, AskError
    from pytest_pdserve.sim.output import Output, Whole
    from pytest_pdserve.sim.plan import Plan


class AnswerWriter(Protocol):
    """Writes one answer in an engine family's form."""

    def opening(self) -> list[bytes]:
        """What opens a stream, when the first token has come."""

    def chunk(self, output: Output) -> list[bytes]:
        """The events for one step."""

    def whole(self, answers: Sequence[Whole], transfer: Mapping[str, Any] | None) -> dict[str, Any]:
        """The body of an unstreamed answer, with all that were asked for."""


class Speech(Protocol):
    """An engine family's bodies and errors."""

    def check(self, ask: Ask, plan: Plan) -> None:
        """Refuse what a worker can't serve. Raises AskError."""

    def error_body(self, error: AskError) -> tuple[int, dict[str, Any]]:
        """Status and JSON body of a refused request."""

    def error_events(self, error: AskError, opening: list[bytes]) -> list[bytes]:
        """What ends a stream with an error."""

    def models(self, plan: Plan) -> dict[str, Any]:
        """A worker's /v1/models."""

    def writer(self, ask: Ask, request_id: str | None) -> AnswerWriter:
        """A writer for one answer."""
