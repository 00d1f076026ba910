"""Section of a report on evaluations with curves: what more samples give."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from mupo_ray.report.estimates import MEANINGS, OF_K, doubling, micro_of, set_names
from mupo_ray.report.page import figure
from mupo_ray.report.plots import Line, sample_curves, span_plot

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy as np

    from mupo_ray.evaluation.results import Estimate, EvalResults
    from mupo_ray.report.estimates import Columns

_CURVES = {"pass@k": "pass@k", "majority@k": "Majority vote of k", "best@k": "Best of k"}


def curves_section(results: Mapping[str, EvalResults], *, first_series: int = 0) -> str:
    """Measures of k against k with their intervals, set by set; empty without samples.

    Args:
        results: of each model.
        first_series: number of the first model among the page's lines.
    """
    parts = []
    for set_name in set_names(results):
        columns = {name: micro_of(found.sets.get(set_name)) for name, found in results.items()}
        plots = _plots(set_name, columns, first_series)
        if plots:
            parts.append(f'<h3>{html.escape(set_name)}</h3><div class="plots">{plots}</div>')
    return "".join(parts)


def _plots(set_name: str, columns: Columns, first: int) -> str:
    series = {
        kind: _lines(columns, field, first) for kind, field in OF_K.items() if kind in _CURVES
    }
    ends = [end for lines in series.values() for line in lines for end in _ends_of(line)]
    if not ends:
        return ""
    margin = 0.05 * (max(ends) - min(ends) + 0.02)
    limits = max(0.0, min(ends) - margin), min(1.0, max(ends) + margin) + 0.005
    plots = []
    for kind, lines in series.items():
        if not lines:
            continue
        names = list(columns)
        said = "; ".join(
            f"{names[line.series - first]}: "
            + ", ".join(f"{line.y[list(line.x).index(k)]:.3f} at k = {k}" for k in _said(line.x))
            for line in lines
        )
        alt = f"{kind} against k on {set_name}. {said}"
        svg = sample_curves(lines, limits=limits, alt=alt, y_label="share of questions")
        meaning = MEANINGS[kind]
        caption = f"{meaning[0].upper()}{meaning[1:]}, with its interval. Across: k, doubling."
        plots.append(figure(_CURVES[kind], svg, caption))
    return "".join([*plots, _span(set_name, columns, first)])


def _span(set_name: str, columns: Columns, first: int) -> str:
    """Diversity beside what it is for: how far right answers rise from one sample to all."""
    lines, said = [], []
    for i, (name, estimates) in enumerate(columns.items(), first):
        if estimates is None or "diversity" not in estimates.measures:
            continue
        most = max(estimates.pass_at_k, default=0)
        if most < 2:
            continue
        at = estimates.measures["diversity"]
        ends = [estimates.pass_at_k[1].value, estimates.pass_at_k[most].value]
        low, high = (at.value if end is None else end for end in (at.low, at.high))
        lines.append(Line(series=i, x=[at.value] * 2, y=ends, band=([low], [high])))
        said.append(f"{name}: diversity {at.value:.3f}, {ends[0]:.3f} to {ends[1]:.3f}")
    if not lines:
        return ""
    alt = f"pass@1 and pass@n against diversity on {set_name}. {'; '.join(said)}"
    labels = {"x_label": "diversity, cosine distance", "y_label": "share of questions"}
    svg = span_plot(lines, alt=alt, **labels)
    caption = (
        "Each line rises from pass@1 (tick) to pass@k of all samples (dot) and stands at the "
        "model's diversity; thin: its interval."
    )
    return figure("Diversity, and what it gives", svg, caption)


def _lines(columns: Columns, field: str, first: int) -> list[Line]:
    found = []
    for i, estimates in enumerate(columns.values(), first):
        by_k: dict[int, Estimate] = {} if estimates is None else getattr(estimates, field)
        if len(by_k) > 1:
            values = [by_k[k] for k in sorted(by_k)]
            low = [e.value if e.low is None else e.low for e in values]
            high = [e.value if e.high is None else e.high for e in values]
            y = [e.value for e in values]
            found.append(Line(series=i, x=sorted(by_k), y=y, band=(low, high)))
    return found


def _ends_of(line: Line) -> Iterable[float]:
    assert line.band is not None
    return (*line.band[0], *line.band[1])


def _said(ks: Sequence[float] | np.ndarray) -> list[int]:
    return [k for k in doubling(int(max(ks))) if k in ks]
