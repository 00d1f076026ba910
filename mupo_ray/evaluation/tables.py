"""Results of evaluations and their comparisons as tables for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mupo_ray.evaluation.compare import main_ks
from mupo_ray.text import short, table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mupo_ray.evaluation.compare import Comparison, Difference, OneSided, SetComparison
    from mupo_ray.evaluation.results import Estimate, Estimates, EvalResults

# In front of the measures of k, of which the file has all.
_BEFORE_K = ("acc@1", "acc@1_sampled")
_LEAST = 7
_MAX_TEXT = 160


def results_table(results: EvalResults, ks: Sequence[int] = ()) -> str:
    """A column a set, and the means over all problems and over sets where there are several.

    A cell is a value and its interval; a dash stands for what could not be measured.

    Args:
        results: of one model.
        ks: whose measures have a row; the powers of two that were measured where empty.
    """
    columns = {name: of_set.micro for name, of_set in results.sets.items()}
    if results.micro is not None and results.macro is not None:
        columns |= {"all problems": results.micro, "mean of sets": results.macro}
    return _columns("", columns, ks)


def models_table(results: Mapping[str, EvalResults]) -> str:
    """For each set a column a model, as in `results_table`."""
    names = dict.fromkeys(name for of_model in results.values() for name in of_model.sets)
    return "\n\n".join(
        _columns(name, {m: r.sets[name].micro for m, r in results.items() if name in r.sets})
        for name in names
    )


def comparison_text(comparison: Comparison, *, num_problems: int) -> str:
    """Tables of every set.

    Args:
        comparison: to show.
        num_problems: most problems of a kind that are shown with their responses.
    """
    lines = [f"a  {comparison.run_a}", f"b  {comparison.run_b}", *comparison.notes]
    for label, names in (("a", comparison.sets_only_a), ("b", comparison.sets_only_b)):
        if names:
            lines.append(f"only in {label}, not compared: {', '.join(names)}")
    for name, compared in comparison.sets.items():
        lines += ["", *_set(name, compared, round(100 * comparison.level), num_problems)]
    return "\n".join(lines)


def _columns(corner: str, columns: Mapping[str, Estimates], ks: Sequence[int] = ()) -> str:
    cells = {name: _cells(estimates, ks) for name, estimates in columns.items()}
    names = dict.fromkeys(name for column in cells.values() for name in column)
    rows = [[corner, *columns]]
    rows.append(["problems", *(str(estimates.num_problems) for estimates in columns.values())])
    rows += [[name, *(column.get(name, "-") for column in cells.values())] for name in names]
    return table(rows, least=_LEAST)


def _cells(estimates: Estimates, ks: Sequence[int]) -> dict[str, str]:
    chosen: dict[str, Estimate | None] = {
        name: estimates.measures[name] for name in _BEFORE_K if name in estimates.measures
    }
    for label, by_k in (("pass@", estimates.pass_at_k), ("majority@", estimates.majority_at_k)):
        # pass@1 is acc@1_sampled by definition.
        row_ks = ks or [k for k in by_k if k > 1 and k & (k - 1) == 0]
        chosen |= {f"{label}{k}": by_k.get(k) for k in row_ks}
    chosen |= {name: e for name, e in estimates.measures.items() if name not in chosen}
    return {name: "-" if e is None else _cell(e) for name, e in chosen.items()}


def _cell(estimate: Estimate) -> str:
    digits = 3 if abs(estimate.value) < 10 else 1
    value = f"{estimate.value:.{digits}f}"
    if estimate.low is None or estimate.high is None:
        return value
    return f"{value} [{estimate.low:.{digits}f}, {estimate.high:.{digits}f}]"


def _set(name: str, compared: SetComparison, percent: int, num_problems: int) -> Iterator[str]:
    yield f"{name}: {compared.num_shared} problems in both{_unpaired(compared)}"
    rows = [["", "a", "b", "b - a", f"{percent} % interval", "p"]]
    if compared.greedy is not None:
        g = compared.greedy
        split = f"{g.num_only_a} a only, {g.num_only_b} b only"
        figures = [f"{v:.3f}" for v in (g.acc_a, g.acc_b)]
        rows.append(["acc@1", *figures, f"{g.acc_b - g.acc_a:+.3f}", split, _p(g.p_value)])
    for measure, d in _main_differences(compared).items():
        interval = f"{d.low:+.3f} to {d.high:+.3f}"
        figures = [f"{d.a:.3f}", f"{d.b:.3f}", f"{d.difference:+.3f}"]
        rows.append([measure, *figures, interval, _p(d.p_value)])
    yield table(rows, least=_LEAST)
    yield from _correlations(compared, percent)
    for label, items in (("a", compared.only_a), ("b", compared.only_b)):
        other = "b" if label == "a" else "a"
        yield f"{len(items)} problems that {label} solves and {other} never does"
        for item in items[:num_problems]:
            yield from _one_sided(item, label, other)
    for left in compared.left_out:
        yield f"left out: {left.measure}: {left.reason}"


def _unpaired(compared: SetComparison) -> str:
    if not compared.num_only_a and not compared.num_only_b:
        return ""
    return f"; left out: {compared.num_only_a} only in a, {compared.num_only_b} only in b"


def _main_differences(compared: SetComparison) -> dict[str, Difference]:
    """Without most k of pass@k: the file has all."""
    ks = [int(n.removeprefix("pass@")) for n in compared.differences if n.startswith("pass@")]
    kept = {f"pass@{k}" for k in main_ks(ks)}
    return {
        name: d
        for name, d in compared.differences.items()
        if not name.startswith("pass@") or name in kept
    }


def _correlations(compared: SetComparison, percent: int) -> Iterator[str]:
    ks = sorted({k for values in compared.diversity_and_pass.values() for k in values})
    if not ks:
        return
    rows = [["Spearman, diversity and", "a", "b", "gains of both"]]
    for k in ks:
        cells = [f"pass@{k}"]
        for values in compared.diversity_and_pass.values():
            c = values.get(k)
            cells.append("-" if c is None else f"{c.value:+.2f} ({c.low:+.2f} to {c.high:+.2f})")
        rows.append(cells)
    yield ""
    yield table(rows, least=_LEAST)
    yield f"in brackets: {percent} % interval"
    yield ""


def _one_sided(item: OneSided, label: str, other: str) -> Sequence[str]:
    asked = item.question.replace("<image>", "")
    question, answer, right, wrong = (
        short(text, _MAX_TEXT) for text in (asked, item.answer, item.right_text, item.wrong_text)
    )
    return (
        f"  {item.prompt_id}  {question}  (gold {answer}; {item.num_right} of "
        f"{item.num_samples} right, 0 of {item.num_samples_other})",
        f"    {label}: {right}",
        f"    {other}: {wrong}",
    )


def _p(value: float) -> str:
    return "<0.001" if value < 0.001 else f"{value:.3f}"
