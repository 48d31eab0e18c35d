"""Distributions of what requests took, cheap to fill and read as Prometheus histograms when scraped."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from prometheus_client.core import HistogramMetricFamily

if TYPE_CHECKING:
    from collections.abc import Mapping

SECONDS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
TOKENS: Final = (1.0, 10.0, 100.0, 1_000.0, 10_000.0, 100_000.0)
BYTES: Final = (1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9)


@dataclass(slots=True)
class Distribution:
    """Values counted in buckets with upper bounds; the last bucket has none."""

    bounds: tuple[float, ...] = SECONDS
    total: float = 0.0
    counts: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value, so many times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def family(self, name: str, labels: Mapping[str, str], scale: float = 1.0) -> HistogramMetricFamily:
        """A histogram family; `scale` turns seconds into the family's unit."""
        family = HistogramMetricFamily(name, name, labels=list(labels))
        running, buckets = 0, []
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            running += count
            buckets.append(("+Inf" if bound == float("inf") else str(bound * scale), float(running)))
        family.add_metric(list(labels.values()), buckets, self.total * scale)
        return family
