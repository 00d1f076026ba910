"""Sections of a report on evaluations that hold tables: measures, categories."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from mupo_ray.report.estimates import (
    MEANINGS,
    OF_K,
    doubling,
    estimate_cell,
    estimate_of,
    micro_of,
    set_names,
)
from mupo_ray.report.page import table
from mupo_ray.report.svg import colour

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mupo_ray.evaluation.results import Estimates, EvalResults, SetResults
    from mupo_ray.report.estimates import Columns

# Columns of the table of categories, beside the ends of the curves of k.
_BY_CATEGORY = ("acc@1", "acc@1_sampled", "diversity", "effective_strategies")


def measures_section(results: Mapping[str, EvalResults]) -> str:
    """Tables of every measure, set by set; first over all sets where there are several."""
    parts = []
    overall = {name: found.micro for name, found in results.items()}
    if any(overall.values()):
        means = {name: found.macro for name, found in results.items()}
        columns = {
            f"{name}, {kind}": e
            for name in results
            for kind, e in (("all questions", overall[name]), ("mean of sets", means[name]))
        }
        parts.append(_measures("All sets", columns))
    for set_name in set_names(results):
        columns = {name: micro_of(found.sets.get(set_name)) for name, found in results.items()}
        parts.append(_measures(set_name, columns))
    levels = sorted({found.intervals.level for found in results.values()})
    said = " or ".join(f"{level:.0%}" for level in levels)
    return (
        f'<p class="hint">Small figures: {said} interval, had other questions been drawn. Models '
        "that answer the same questions may differ although their intervals overlap; the paired "
        f"tests of a comparison tell.</p>{''.join(parts)}"
    )


def categories_section(results: Mapping[str, EvalResults], *, first_series: int = 0) -> str:
    """For each set with categories a table a measure; empty where no set has any.

    Args:
        results: of each model.
        first_series: number of the first model among the page's lines.
    """
    parts = []
    series = {name: first_series + i for i, name in enumerate(results)}
    for set_name in set_names(results):
        sets = {n: r.sets[set_name] for n, r in results.items() if set_name in r.sets}
        if any(found.by_category for found in sets.values()):
            parts.append(f"<h3>{html.escape(set_name)}</h3>{_categories(sets, series)}")
    return "".join(parts)


def _measures(heading: str, columns: Columns) -> str:
    present = [estimates for estimates in columns.values() if estimates is not None]
    most = max((max(e.pass_at_k, default=0) for e in present), default=0)
    others = dict.fromkeys(n for e in present for n in e.measures if not n.startswith("acc@1"))
    right = [_row(name, MEANINGS[name], columns) for name in ("acc@1", "acc@1_sampled")]
    for kind in ("pass@k", "majority@k", "best@k"):
        right += [
            _row(kind.replace("k", str(k)), MEANINGS[kind] if k == 2 else "", columns)
            for k in doubling(most)
            if k > 1  # One sample alone is acc@1_sampled by definition.
        ]
    samples = [_row(name, MEANINGS.get(name, ""), columns) for name in others]
    samples += [
        [label, *("-" if e is None else f"{getattr(e, key):,}" for e in columns.values())]
        for label, key in (("questions", "num_problems"), ("samples", "num_samples"))
    ]
    tables = []
    for title, rows in (("Right answers", right), ("Samples", samples)):
        shown = [row for row in rows if set(row[1:]) != {"-"}]
        body = table([title, *columns], shown, caption=f"{title}, {heading}")
        tables.append(f"<div>{body}</div>")
    return (
        f'<h3>{html.escape(heading)}</h3><div class="tables">{"".join(tables)}</div>'
        f"{_reasons(columns)}{_every_k(columns)}{_left_out(columns)}"
    )


def _row(name: str, text: str, columns: Columns) -> list[str]:
    head = html.escape(name).replace("_", "_<wbr>") + (f"<small>{text}</small>" if text else "")
    return [head, *(estimate_cell(estimate_of(e, name), name) for e in columns.values())]


def _reasons(columns: Columns) -> str:
    present = [e for e in columns.values() if e is not None]
    reasons = dict.fromkeys(reason for e in present for reason in e.reasons)
    if not reasons:
        return ""
    rows = [
        [html.escape(reason.replace("_", " ")), *(_count(e, reason) for e in columns.values())]
        for reason in reasons
    ]
    inner = table(["", *columns], rows, caption="Samples by the reason of their verdict")
    return f"<details><summary>Reasons of the verdicts</summary>{inner}</details>"


def _count(estimates: Estimates | None, reason: str) -> str:
    if estimates is None:
        return "-"
    count = estimates.reasons.get(reason, 0)
    return f"{count:,}<small>{count / max(1, estimates.num_samples):.1%}</small>"


def _every_k(columns: Columns) -> str:
    rows = []
    for kind, field in OF_K.items():
        ks = sorted({k for e in columns.values() if e is not None for k in getattr(e, field)})
        rows += [_row(kind.replace("k", str(k)), "", columns) for k in ks]
    if not rows:
        return ""
    inner = table(["", *columns], rows, caption="Every measure at every k")
    notes = "".join(f"<li>{kind}: {MEANINGS[kind]}</li>" for kind in OF_K)
    return f"<details><summary>Every k</summary><ul>{notes}</ul>{inner}</details>"


def _left_out(columns: Columns) -> str:
    """What could not be estimated; models that share a reason share a line."""
    who: dict[tuple[str, str], list[str]] = {}
    for name, estimates in columns.items():
        for gap in estimates.left_out if estimates is not None else ():
            who.setdefault((gap.measure, gap.reason), []).append(name)
    if not who:
        return ""
    items = "".join(
        f"<li><b>{html.escape(measure)}</b> of {html.escape(', '.join(names))}: "
        f"{html.escape(reason)}</li>"
        for (measure, reason), names in who.items()
    )
    return f"<details open><summary>Left out</summary><ul>{items}</ul></details>"


def _categories(sets: Mapping[str, SetResults], series: Mapping[str, int]) -> str:
    most = max((max(found.micro.pass_at_k, default=0) for found in sets.values()), default=0)
    measures = [*_BY_CATEGORY]
    measures[2:2] = [f"{kind}@{most}" for kind in ("pass", "majority") if most > 1]
    tables = [_category_table(sets, series, name) for name in measures]
    return f'<div class="tables">{"".join(tables)}</div>'


def _category_table(sets: Mapping[str, SetResults], series: Mapping[str, int], name: str) -> str:
    categories = sorted({category for found in sets.values() for category in found.by_category})
    rows = []
    for category in categories:
        columns = {n: found.by_category.get(category) for n, found in sets.items()}
        size = next((e.num_problems for e in columns.values() if e is not None), 0)
        label = f"{html.escape(category)}<small>{size:,} questions</small>"
        rows.append([label, *_bars(columns, series, name)])
    if all(set(row[1:]) == {"-"} for row in rows):
        return ""
    for label, text, of in (
        ("macro", "mean of the categories", {n: found.macro for n, found in sets.items()}),
        ("micro", "all questions alike", {n: found.micro for n, found in sets.items()}),
    ):
        cells = _bars(of, series, name)
        rows.append([f"<b>{label}</b><small>{text}</small>", *cells])
    body = table([name, *sets], rows, caption=f"{name} by category")
    return f"<div>{body}</div>"


def _bars(columns: Columns, series: Mapping[str, int], name: str) -> list[str]:
    """Cells of a measure, those of a share with a bar in the model's colour."""
    cells = []
    for model, estimates in columns.items():
        estimate = estimate_of(estimates, name)
        bar = ""
        if estimate is not None and "@" in name:
            width = f"width:{estimate.value:.1%};background:var(--{colour(series[model])})"
            bar = f'<i class="bar"><i style="{width}"></i></i>'
        cells.append(estimate_cell(estimate) + bar)
    return cells
