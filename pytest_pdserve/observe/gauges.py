"""A worker's Prometheus page, read by meaning."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from prometheus_client.parser import text_string_to_metric_families

from pytest_pdserve.engines import Meaning

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from prometheus_client.samples import Sample

    from pytest_pdserve.engines import Engine, Metric
    from pytest_pdserve.target import Role

LARGEST: Final = frozenset({Meaning.KV_USAGE, Meaning.STARTED_AT})
"""What several ranks of one worker have each for itself; everything else is added up over them."""


def read_gauges(page: str, engine: Engine, role: Role) -> dict[Meaning, float]:
    """What a page says, by meaning. A meaning that it has no number for is left out: unknown, never 0.

    Only the lines with names that mean something are parsed: a page may have a million characters. Raises
    ValueError, one line, when one of them is not in the Prometheus text format.
    """
    wanted = {
        meaning: [metric for metric in metrics if metric.role in (None, role)]
        for meaning, metrics in engine.metrics.items()
    }
    names = {metric.name for metrics in wanted.values() for metric in metrics}
    samples: dict[str, list[Sample]] = {name: [] for name in names}
    lines = "".join(f"{line}\n" for line in page.splitlines() if _name(line) in names)
    for family in text_string_to_metric_families(lines):
        for sample in family.samples:
            samples[sample.name].append(sample)
    found = ((meaning, _value(meaning, metrics, samples)) for meaning, metrics in wanted.items())
    return {meaning: value for meaning, value in found if value is not None}


def _name(line: str) -> str:
    return line.partition(" ")[0].partition("{")[0]


def _value(meaning: Meaning, metrics: Iterable[Metric], samples: Mapping[str, list[Sample]]) -> float | None:
    """The first metric of which the page has samples."""
    for metric in metrics:
        values = [
            sample.value
            for sample in samples[metric.name]
            if all(sample.labels.get(name) == value for name, value in metric.labels)
            and math.isfinite(sample.value)
        ]
        if values:
            return max(values) if meaning in LARGEST else sum(values)
    return None
