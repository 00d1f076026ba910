"""Sections of a page on evaluations that hold figures: curves of k, tables, models compared."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mupo_ray.errors import DataError
from mupo_ray.evaluation.compare import compare_runs
from mupo_ray.report.cards import Chosen
from mupo_ray.report.page import Cell, breakable, cell, fill
from mupo_ray.report.plots import Line, Plot, sample_curves, span_plot
from mupo_ray.report.svg import colour
from mupo_ray.text import number

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mupo_ray.evaluation.compare import Comparison, Correlation, Difference, SetComparison
    from mupo_ray.evaluation.results import Estimate, Estimates, EvalResults, SetResults
    from mupo_ray.evaluation.samples import EvaluatedProblem
    from mupo_ray.report.cards import Card
    from mupo_ray.report.page import Row

    Columns = Mapping[str, Estimates | None]
    """Model -> what it measured, None where it did not."""
    Problems = Mapping[str, Sequence[EvaluatedProblem]]
    """Set -> its problems."""

_MEANINGS = {
    "acc@1": "greedy answer right",
    "acc@1_sampled": "share of the samples that are right",
    "pass@k": "unbiased chance of a right one among k samples",
    "any@k": "share of disjoint blocks of k samples with a right one",
    "majority@k": "chance that the most frequent answer of k samples is right",
    "best@k": "chance that the best-scored of k samples is right",
    "diversity": "mean cosine distance between the reasoning of two samples",
    "effective_strategies": "effective number of ways of reasoning (Vendi score)",
    "answer_entropy": "entropy of the answers of a question's samples, nat",
    "length": "tokens of a sample",
    "truncated_frac": "share of samples cut at the token limit",
    "format": "share of samples in the asked-for shape",
    "strategies/entropy": "entropy of the recognised strategies of a question's samples, nat",
    "strategies/num_in_first_8": "distinct recognised strategies in a question's first 8 samples",
    "strategies/fidelity": "share of recognised chains whose box follows from their own readings",
}
# Measure of k -> field of `Estimates`.
_OF_K = {
    "pass@k": "pass_at_k",
    "majority@k": "majority_at_k",
    "best@k": "best_of_k",
    "any@k": "any_of_k",
}
_CURVES = {"pass@k": "pass@k", "majority@k": "Majority vote of k", "best@k": "Best of k"}

# Columns of the table of categories, beside the ends of the curves of k.
_BY_CATEGORY = ("acc@1", "acc@1_sampled", "diversity", "effective_strategies")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two models compared, and the problems that show it."""

    comparison: Comparison
    one_sided: dict[str, list[Chosen]]
    """Set -> problems that one of the two alone solves."""


def set_names(results: Mapping[str, EvalResults]) -> list[str]:
    """Every set that a model was evaluated on, in the order of the first that has it."""
    return list(dict.fromkeys(name for r in results.values() for name in r.sets))


def curves_section(results: Mapping[str, EvalResults], first_series: int = 0) -> str:
    """Measures of k against k with their intervals, set by set; empty without samples.

    Args:
        results: of each model.
        first_series: number of the first model among the page's lines.
    """
    plots = {n: _plots(n, _micros(results, n), first_series) for n in set_names(results)}
    sets = [(name, drawn) for name, drawn in plots.items() if drawn]
    return fill("eval/curves.html", sets=sets) if sets else ""


def measures_section(results: Mapping[str, EvalResults]) -> str:
    """Tables of every measure, set by set; first over all sets where there are several."""
    sets = []
    if any(r.micro for r in results.values()):
        columns: dict[str, Estimates | None] = {}
        for name, r in results.items():
            columns |= {f"{name}, all questions": r.micro, f"{name}, mean of sets": r.macro}
        sets.append(_measures("All sets", columns))
    sets += [_measures(name, _micros(results, name)) for name in set_names(results)]
    levels = sorted({r.intervals.level for r in results.values()})
    return fill(
        "eval/measures.html",
        levels=[f"{level:.0%}" for level in levels],
        sets=sets,
        of_k=[(kind, _MEANINGS[kind]) for kind in _OF_K],
    )


def categories_section(results: Mapping[str, EvalResults], first_series: int = 0) -> str:
    """For each set with categories a table a measure; empty where no set has any.

    Args:
        results: of each model.
        first_series: number of the first model among the page's lines.
    """
    colours = {name: colour(i) for i, name in enumerate(results, first_series)}
    parts = []
    for set_name in set_names(results):
        sets = {n: r.sets[set_name] for n, r in results.items() if set_name in r.sets}
        if any(s.by_category for s in sets.values()):
            parts.append((set_name, list(sets), _categories(sets, colours)))
    return fill("eval/categories.html", sets=parts) if parts else ""


def compare_to_first(by_model: Mapping[str, Problems], num_each: int) -> list[Pair]:
    """Compare every model with the first; those that share no problem with it are left out.

    Args:
        by_model: model -> set -> problems.
        num_each: problems to show that a model alone solves, most often solved first.
    """
    first, *others = by_model
    pairs = []
    for place, name in enumerate(others):
        try:
            comparison = compare_runs(by_model[first], by_model[name], run_a=first, run_b=name)
        except DataError:
            continue
        sides = {first: by_model[first], name: by_model[name]}
        one_sided = {
            set_name: _one_sided(f"c{place}-{i}", sides, set_name, compared, num_each)
            for i, (set_name, compared) in enumerate(comparison.sets.items())
        }
        pairs.append(Pair(comparison=comparison, one_sided=one_sided))
    return pairs


def compare_section(pairs: Sequence[Pair], cards: Mapping[str, Card]) -> str:
    """Tables and problems of each pair, set by set; empty without pairs.

    Args:
        pairs: as `compare_to_first` gives them.
        cards: of the pairs' problems, by key.
    """
    parts = [
        _part(pair.comparison, name, [cards[item.key] for item in pair.one_sided[name]])
        for pair in pairs
        for name in pair.comparison.sets
    ]
    if not parts:
        return ""
    level = f"{pairs[0].comparison.level:.0%}"
    return fill("eval/comparison.html", level=level, pairs=parts)


def _micros(results: Mapping[str, EvalResults], set_name: str) -> Columns:
    """Estimates of each model over all problems of a set; None where it was not asked it."""
    sets = {name: r.sets.get(set_name) for name, r in results.items()}
    return {name: None if s is None else s.micro for name, s in sets.items()}


def _doubling(most: int) -> list[int]:
    """1, 2, 4, ... and the last k itself."""
    return sorted({*(1 << i for i in range(most.bit_length())), *([most] if most else [])})


def _plots(set_name: str, columns: Columns, first: int) -> list[Plot]:
    series = {
        kind: _lines(columns, field, first) for kind, field in _OF_K.items() if kind in _CURVES
    }
    bands = [line.band for lines in series.values() for line in lines]
    ends = [end for band in bands if band is not None for side in band for end in side]
    if not ends:
        return []
    margin = 0.05 * (max(ends) - min(ends) + 0.02)
    limits = max(0.0, min(ends) - margin), min(1.0, max(ends) + margin) + 0.005
    names = list(columns)
    plots = []
    for kind, lines in series.items():
        if not lines:
            continue
        sentences = "; ".join(f"{names[line.series - first]}: {_in_words(line)}" for line in lines)
        alt = f"{kind} against k on {set_name}. {sentences}"
        svg = sample_curves(lines, limits=limits, alt=alt, y_label="share of questions")
        meaning = _MEANINGS[kind]
        caption = f"{meaning[0].upper()}{meaning[1:]}, with its interval. Across: k, doubling."
        plots.append(Plot(_CURVES[kind], svg, caption))
    return [*plots, *_span(set_name, columns, first)]


def _lines(columns: Columns, field: str, first: int) -> list[Line]:
    lines = []
    for i, estimates in enumerate(columns.values(), first):
        by_k: dict[int, Estimate] = {} if estimates is None else getattr(estimates, field)
        if len(by_k) > 1:
            values = [by_k[k] for k in sorted(by_k)]
            low = [e.value if e.low is None else e.low for e in values]
            high = [e.value if e.high is None else e.high for e in values]
            y = [e.value for e in values]
            lines.append(Line(series=i, x=sorted(by_k), y=y, band=(low, high)))
    return lines


def _in_words(line: Line) -> str:
    values = dict(zip(map(int, line.x), line.y, strict=True))
    ks = [k for k in _doubling(max(values)) if k in values]
    return ", ".join(f"{values[k]:.3f} at k = {k}" for k in ks)


def _span(set_name: str, columns: Columns, first: int) -> list[Plot]:
    """Diversity beside what it is for: how far right answers rise from one sample to all."""
    lines, sentences = [], []
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
        sentences.append(f"{name}: diversity {at.value:.3f}, {ends[0]:.3f} to {ends[1]:.3f}")
    if not lines:
        return []
    alt = f"pass@1 and pass@n against diversity on {set_name}. {'; '.join(sentences)}"
    labels = {"x_label": "diversity, cosine distance", "y_label": "share of questions"}
    caption = (
        "Each line rises from pass@1 (tick) to pass@k of all samples (dot) and stands at the "
        "model's diversity; thin: its interval."
    )
    return [Plot("Diversity, and what it gives", span_plot(lines, alt=alt, **labels), caption)]


def _measures(heading: str, columns: Columns) -> dict[str, Any]:
    """What a template says of a set."""
    present = [estimates for estimates in columns.values() if estimates is not None]
    most = max((max(e.pass_at_k, default=0) for e in present), default=0)
    others = dict.fromkeys(n for e in present for n in e.measures if not n.startswith("acc@1"))
    right = [_row(name, _MEANINGS[name], columns) for name in ("acc@1", "acc@1_sampled")]
    for kind in ("pass@k", "majority@k", "best@k"):
        right += [
            _row(kind.replace("k", str(k)), _MEANINGS[kind] if k == 2 else "", columns)
            for k in _doubling(most)
            if k > 1  # One sample alone is acc@1_sampled by definition.
        ]
    samples = [_row(name, _MEANINGS.get(name, ""), columns) for name in others]
    for label, key in (("questions", "num_problems"), ("samples", "num_samples")):
        counts = ("-" if e is None else f"{getattr(e, key):,}" for e in columns.values())
        samples.append([label, *counts])
    reasons = dict.fromkeys(reason for e in present for reason in e.reasons)
    every_k = []
    for kind, field in _OF_K.items():
        ks = sorted({k for e in present for k in getattr(e, field)})
        every_k += [_row(kind.replace("k", str(k)), "", columns) for k in ks]
    left_out: dict[tuple[str, str], list[str]] = {}
    for name, estimates in columns.items():
        for gap in estimates.left_out if estimates is not None else ():
            # Models that share a reason share a line.
            left_out.setdefault((gap.measure, gap.reason), []).append(name)
    return {
        "name": heading,
        "models": list(columns),
        "right": [row for row in right if not _is_empty(row)],
        "samples": [row for row in samples if not _is_empty(row)],
        "reasons": [
            [reason.replace("_", " "), *(_count(e, reason) for e in columns.values())]
            for reason in reasons
        ],
        "every_k": every_k,
        "left_out": left_out,
    }


def _row(name: str, text: str, columns: Columns) -> Row:
    form = ".1f" if name == "length" else ".3f"
    label = Cell(text=breakable(name), small=text)
    return [label, *(_cell(_estimate(e, name), form) for e in columns.values())]


def _is_empty(row: Row) -> bool:
    return all(content in ("-", Cell(text="-")) for content in row[1:])


def _cell(estimate: Estimate | None, form: str = ".3f") -> Cell:
    return (
        cell(None)
        if estimate is None
        else cell(estimate.value, (estimate.low, estimate.high), form)
    )


def _estimate(estimates: Estimates | None, name: str) -> Estimate | None:
    """A measure by the name that tables give it."""
    if estimates is None:
        return None
    kind, _, k = name.partition("@")
    if f"{kind}@k" in _OF_K:
        by_k: dict[int, Estimate] = getattr(estimates, _OF_K[f"{kind}@k"])
        return by_k.get(int(k))
    return estimates.measures.get(name)


def _count(estimates: Estimates | None, reason: str) -> Cell:
    if estimates is None:
        return Cell(text="-")
    count = estimates.reasons.get(reason, 0)
    return Cell(text=f"{count:,}", small=f"{count / max(1, estimates.num_samples):.1%}")


def _categories(sets: Mapping[str, SetResults], colours: Mapping[str, str]) -> dict[str, list[Row]]:
    """Measure -> rows of its table, where any category has it."""
    most = max((max(s.micro.pass_at_k, default=0) for s in sets.values()), default=0)
    measures = [*_BY_CATEGORY]
    measures[2:2] = [f"{kind}@{most}" for kind in ("pass", "majority") if most > 1]
    categories = sorted({category for s in sets.values() for category in s.by_category})
    columns: dict[str, Columns] = {
        category: {name: s.by_category.get(category) for name, s in sets.items()}
        for category in categories
    }
    tables = {}
    for measure in measures:
        rows: list[Row] = [
            [_category(name, of.values()), *_bars(of, colours, measure)]
            for name, of in columns.items()
        ]
        if all(map(_is_empty, rows)):
            continue
        for label, text, of in (
            ("macro", "mean of the categories", {n: s.macro for n, s in sets.items()}),
            ("micro", "all questions alike", {n: s.micro for n, s in sets.items()}),
        ):
            total = Cell(text=label, small=text, kind="total")
            rows.append([total, *_bars(of, colours, measure)])
        tables[measure] = rows
    return tables


def _category(name: str, estimates: Iterable[Estimates | None]) -> Cell:
    size = next((e.num_problems for e in estimates if e is not None), 0)
    return Cell(text=name, small=f"{size:,} questions")


def _bars(columns: Columns, colours: Mapping[str, str], measure: str) -> list[Cell]:
    """Cells of a measure, those of a share with a bar in the model's colour."""
    cells = []
    for model, estimates in columns.items():
        estimate = _estimate(estimates, measure)
        has_bar = estimate is not None and "@" in measure
        bar = (estimate.value, colours[model]) if estimate is not None and has_bar else None
        cells.append(replace(_cell(estimate), bar=bar))
    return cells


def _one_sided(
    key: str, sides: Mapping[str, Problems], set_name: str, compared: SetComparison, num_each: int
) -> list[Chosen]:
    first, second = sides
    by_id = {n: {p.prompt_id: p for p in problems[set_name]} for n, problems in sides.items()}
    chosen: list[Chosen] = []
    for solver, other, solved in (
        (second, first, compared.only_b),
        (first, second, compared.only_a),
    ):
        for item in solved[:num_each]:
            greedy = "" if item.num_right else " (greedily)"
            why = (
                f"{solver} solves it in {item.num_right} of {item.num_samples} samples{greedy}, "
                f"{other} in none of {item.num_samples_other}"
            )
            answers = {name: by_id[name][item.prompt_id] for name in sides}
            chosen.append(Chosen(key=f"{key}-{len(chosen)}", why=why, answers=answers))
    return chosen


def _part(comparison: Comparison, set_name: str, cards: Sequence[Card]) -> dict[str, Any]:
    """What a template says of two models on a set."""
    compared = comparison.sets[set_name]
    a, b = comparison.run_a, comparison.run_b
    notes = [*comparison.notes, *(f"{gap.measure}: {gap.reason}" for gap in compared.left_out)]
    for model, count in ((a, compared.num_only_a), (b, compared.num_only_b)):
        if count:
            notes.append(f"{count} questions that only {model} was asked are left out")
    most = max((int(n[5:]) for n in compared.differences if n.startswith("pass@")), default=0)
    hidden = {f"pass@{k}" for k in range(1, most + 1)} - {f"pass@{k}" for k in _doubling(most)}
    by_k = compared.diversity_and_pass
    greedy = compared.greedy
    return {
        "a": a,
        "b": b,
        "set_name": set_name,
        "num_shared": compared.num_shared,
        "greedy": greedy,
        "greedy_p": "" if greedy is None else _p_value(greedy.p_value),
        "differences": [
            _difference(name, difference)
            for name, difference in compared.differences.items()
            if name not in hidden
        ],
        # What is empty is among the notes.
        "correlations": [
            [f"pass@{k}", *(_correlation(by_k[key].get(k)) for key in ("a", "b", "difference"))]
            for k in sorted({k for of_k in by_k.values() for k in of_k})
        ],
        "notes": notes,
        "num_only_a": len(compared.only_a),
        "num_only_b": len(compared.only_b),
        "cards": cards,
    }


def _difference(name: str, difference: Difference) -> list[Cell | str]:
    """A row; the difference is coloured where more is better and the interval has one sign."""
    d, is_good = difference, "@" in name or name in ("diversity", "effective_strategies")
    return [
        Cell(text=breakable(name)),
        number(d.a),
        number(d.b),
        Cell(
            text=number(d.difference, "+.3f"),
            small=f"{d.low:+.3f} to {d.high:+.3f}, p {_p_value(d.p_value)}",
            kind="" if not is_good else "up" if d.low > 0 else "down" if d.high < 0 else "",
        ),
    ]


def _correlation(correlation: Correlation | None) -> Cell:
    if correlation is None:
        return Cell(text="-")
    c = correlation
    return Cell(text=number(c.value, "+.2f"), small=f"{c.low:+.2f} to {c.high:+.2f}")


def _p_value(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"= {value:.3f}"
