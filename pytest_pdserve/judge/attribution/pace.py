"""Rules from one answer's own course: which part of it was slow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_pdserve.judge.attribution.conclusion import Conclusion, Rule
from pytest_pdserve.judge.attribution.symptom import Kind, Layer
from pytest_pdserve.judge.probe import Sureness
from pytest_pdserve.units import seconds

if TYPE_CHECKING:
    from pytest_pdserve.evidence import Surroundings
    from pytest_pdserve.judge.attribution.symptom import Symptom

LATE: Final = 8.0
"""A second token that comes so many times later than the following ones shows the hand-over (dynamo issue 2552: 9)."""
NOTABLE: Final = 0.2
"""Seconds; a hand-over that takes less is not worth an accusation."""
LONG_PROMPT: Final = 1000
"""Tokens from which the time before the first token may be the prompt's length."""
MOST: Final = 0.6
"""The share of the whole time that makes one part responsible for it."""


def _late_second_token(symptom: Symptom, around: Surroundings) -> Conclusion | None:
    pace = symptom.pace
    if symptom.kind is not Kind.SLOW or pace is None or pace.second_token is None or pace.itl is None:
        return None
    if pace.second_token < NOTABLE or pace.second_token < LATE * pace.itl:
        return None
    return Conclusion(
        layer=Layer.KV_TRANSFER,
        sureness=Sureness.LIKELY,
        because=(
            f"the second token came {seconds(pace.second_token)} after the first, the others {seconds(pace.itl)} apart",
        ),
        would_decide="decode's own time to its first token",
    )


def _decode_slow(symptom: Symptom, around: Surroundings) -> Conclusion | None:
    pace = symptom.pace
    if symptom.kind is not Kind.SLOW or pace is None or pace.itl is None or pace.ttft is None:
        return None
    decoding = symptom.seconds - pace.ttft
    if decoding < MOST * symptom.seconds or pace.itl * symptom.tokens < MOST * decoding:
        return None
    return Conclusion(
        layer=Layer.DECODE,
        sureness=Sureness.LIKELY,
        because=(f"{seconds(pace.itl)} between tokens all along, the first after {seconds(pace.ttft)}",),
        would_decide="the same answer from a decode asked directly",
    )


def _long_prompt(symptom: Symptom, around: Surroundings) -> Conclusion | None:
    pace = symptom.pace
    if symptom.kind is not Kind.SLOW or pace is None or pace.ttft is None or not pace.prompt_tokens:
        return None
    usual = around.usual
    before = pace.ttft >= MOST * symptom.seconds
    if usual is None or not before or pace.prompt_tokens < LONG_PROMPT or pace.ttft < LATE * usual:
        return None
    each = (pace.ttft - usual) / pace.prompt_tokens * 1000
    return Conclusion(
        layer=Layer.KV_TRANSFER,
        sureness=Sureness.LIKELY,
        because=(
            f"{seconds(pace.ttft)} to the first token of a prompt of {pace.prompt_tokens:,} tokens, "
            f"{seconds(usual)} for a whole small answer: {seconds(each)} per 1,000 tokens",
        ),
        would_decide="prefill's own time for that prompt: if it is as long, it is the prefill",
    )


PACE_RULES: Final = (
    Rule(
        name="late second token",
        needs="the times of a streamed answer's tokens",
        concludes="KV transfer, when only the second token is late",
        judge=_late_second_token,
    ),
    Rule(
        name="decode slow",
        needs="the times of a streamed answer's tokens",
        concludes="decode, when all tokens come slowly and the first doesn't",
        judge=_decode_slow,
    ),
    Rule(
        name="long prompts slow",
        needs="time to the first token, the prompt's length, the usual time of small answers",
        concludes="KV transfer, when a long prompt takes far longer than a small answer",
        judge=_long_prompt,
    ),
)
