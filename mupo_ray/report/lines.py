"""Metrics over steps as the lines of a report's plots, and in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mupo_ray.observability.metrics import METRICS
from mupo_ray.report.plots import Line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

METRIC_TEXT = {metric.key: metric.text for metric in METRICS}
"""Metric key -> what it is, in words."""


def lines_of(series: Mapping[str, Sequence[tuple[float, float]]]) -> list[Line]:
    """A line for each run that has points; a run's number stays its own."""
    return [
        Line(series=i, x=[x for x, _ in points], y=[y for _, y in points])
        for i, points in enumerate(series.values())
        if points
    ]


def ends_of(series: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """First and last point of each run in words."""
    return "; ".join(
        f"{name}: {points[0][1]:.4g} at step {points[0][0]}, {points[-1][1]:.4g} at step "
        f"{points[-1][0]}"
        for name, points in series.items()
        if points
    )


def sentence(text: str) -> str:
    """The text with a capital and a full stop."""
    return f"{text[0].upper()}{text[1:]}."
