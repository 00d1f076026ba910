"""Section of a report that compares two evaluations: paired tests, and what one alone solves."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mupo_ray.errors import DataError
from mupo_ray.evaluation.compare import compare_runs
from mupo_ray.report.choice import Shown
from mupo_ray.report.estimates import doubling
from mupo_ray.report.page import table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mupo_ray.evaluation.compare import Comparison, Correlation, Difference, SetComparison
    from mupo_ray.evaluation.samples import EvaluatedProblem
    from mupo_ray.report.cards import ProblemCards

    Problems = Mapping[str, Sequence[EvaluatedProblem]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two models compared, and the problems that show it."""

    comparison: Comparison
    shown: dict[str, list[Shown]]
    """Set -> problems that one of the two alone solves."""


def compare_to_first(by_model: Mapping[str, Problems], num_each: int) -> list[Pair]:
    """Compare every model with the first; those that share no problem with it are left out.

    Args:
        by_model: model -> set -> problems.
        num_each: problems shown that a model alone solves, most often solved first.
    """
    first, *others = by_model
    pairs = []
    for number, name in enumerate(others):
        try:
            found = compare_runs(by_model[first], by_model[name], run_a=first, run_b=name)
        except DataError:
            continue
        sides = {first: by_model[first], name: by_model[name]}
        shown = {
            set_name: _one_sided(f"c{number}-{place}", sides, set_name, compared, num_each)
            for place, (set_name, compared) in enumerate(found.sets.items())
        }
        pairs.append(Pair(comparison=found, shown=shown))
    return pairs


def compare_section(pairs: Sequence[Pair], cards: ProblemCards) -> str:
    """Tables and problems of each pair, set by set; empty without pairs."""
    parts = [
        _set(pair.comparison, name, found, pair.shown[name], cards)
        for pair in pairs
        for name, found in pair.comparison.sets.items()
    ]
    if not parts:
        return ""
    level = f"{pairs[0].comparison.level:.0%}"
    return (
        '<p class="hint">Both models on the same questions, question by question. Differences '
        f"have their {level} paired bootstrap interval; p-values are two-sided and not corrected "
        f"for how many measures are looked at.</p>{''.join(parts)}"
    )


def _one_sided(
    key: str, sides: Mapping[str, Problems], set_name: str, found: SetComparison, num_each: int
) -> list[Shown]:
    first, second = sides
    by_id = {n: {p.prompt_id: p for p in problems[set_name]} for n, problems in sides.items()}
    shown: list[Shown] = []
    for solver, other, solved in (
        (second, first, found.only_b),
        (first, second, found.only_a),
    ):
        for item in solved[:num_each]:
            greedy = "" if item.num_right else " (greedily)"
            why = (
                f"{solver} solves it in {item.num_right} of {item.num_samples} samples{greedy}, "
                f"{other} in none of {item.num_samples_other}"
            )
            answers = {name: by_id[name][item.prompt_id] for name in sides}
            shown.append(Shown(key=f"{key}-{len(shown)}", why=why, answers=answers))
    return shown


def _set(
    pair: Comparison,
    name: str,
    found: SetComparison,
    shown: Sequence[Shown],
    cards: ProblemCards,
) -> str:
    a, b = html.escape(pair.run_a), html.escape(pair.run_b)
    notes = [*pair.notes, *(f"{gap.measure}: {gap.reason}" for gap in found.left_out)]
    for model, count in ((pair.run_a, found.num_only_a), (pair.run_b, found.num_only_b)):
        if count:
            notes.append(f"{count} questions that only {model} was asked are left out")
    items = "".join(f"<li>{html.escape(note)}</li>" for note in notes)
    said = (
        f"<details><summary>Notes, and what is left out</summary><p>a is {a}, b is {b}.</p>"
        f"<ul>{items}</ul></details>"
        if items
        else ""
    )
    counts = (
        f"<p>{b} solves {len(found.only_b)} questions that {a} never does; {a} solves "
        f"{len(found.only_a)} that {b} never does."
        + (f" The {len(shown)} solved most often are below." if shown else "")
        + "</p>"
    )
    inner = "".join(cards.html(item, side_by_side=True) for item in shown)
    responses = (
        f"<details><summary>Side by side: what one alone solves</summary>{inner}</details>"
        if shown
        else ""
    )
    return (
        f"<h3>{b} against {a}, {html.escape(name)} ({found.num_shared:,} questions)</h3>"
        f"{_greedy(pair, found)}"
        f'<div class="tables"><div>{_differences(pair, found)}</div>'
        f"<div>{_correlations(pair, found)}</div></div>"
        '<p class="hint small">Diversity and pass@k: Spearman correlation over questions; gains: '
        "whether a question whose diversity rose is one whose pass@k rose.</p>"
        f"{said}{counts}{responses}"
    )


def _greedy(pair: Comparison, found: SetComparison) -> str:
    test = found.greedy
    if test is None:
        return ""
    a, b = html.escape(pair.run_a), html.escape(pair.run_b)
    return (
        f"<p>Greedy answers: {test.acc_a:.3f} of {a}, {test.acc_b:.3f} of {b}; both right on "
        f"{test.num_both}, only {a} on {test.num_only_a}, only {b} on {test.num_only_b}, neither "
        f"on {test.num_neither}. Exact McNemar test: p {_p(test.p_value)}.</p>"
    )


def _differences(pair: Comparison, found: SetComparison) -> str:
    most = max((int(n[5:]) for n in found.differences if n.startswith("pass@")), default=0)
    hidden = {f"pass@{k}" for k in range(1, most + 1)} - {f"pass@{k}" for k in doubling(most)}
    rows = [
        [html.escape(name).replace("_", "_<wbr>"), *_difference(d, is_good=_is_good(name))]
        for name, d in found.differences.items()
        if name not in hidden
    ]
    head = ["Means", pair.run_a, pair.run_b, "difference"]
    return table(head, rows, caption=f"Differences of {pair.run_b} and {pair.run_a}")


def _is_good(name: str) -> bool:
    """True where more is better."""
    return "@" in name or name in ("diversity", "effective_strategies")


def _difference(found: Difference, *, is_good: bool) -> list[str]:
    """Cells; coloured where more is better and the interval has one sign."""
    sign = "up" if found.low > 0 else "down" if found.high < 0 else ""
    shown = f"{found.difference:+.3f}"
    small = f"{found.low:+.3f} to {found.high:+.3f}, p {_p(found.p_value)}"
    return [
        f"{found.a:.3f}",
        f"{found.b:.3f}",
        (f'<span class="{sign}">{shown}</span>' if sign and is_good else shown)
        + f"<small>{small}</small>",
    ]


def _correlations(pair: Comparison, found: SetComparison) -> str:
    """Rank correlation over questions; what is empty is among the notes."""
    columns = found.diversity_and_pass
    ks = sorted({k for of_k in columns.values() for k in of_k})
    if not ks:
        return ""
    names = {"a": pair.run_a, "b": pair.run_b, "difference": "gains"}
    rows = [[f"pass@{k}", *(_correlation(columns[key].get(k)) for key in names)] for k in ks]
    caption = "Rank correlation of diversity and pass@k over questions"
    return table(["Diversity and ...", *names.values()], rows, caption=caption)


def _correlation(found: Correlation | None) -> str:
    if found is None:
        return "-"
    return f"{found.value:+.2f}<small>{found.low:+.2f} to {found.high:+.2f}</small>"


def _p(value: float) -> str:
    return "&lt; 0.001" if value < 0.001 else f"= {value:.3f}"
