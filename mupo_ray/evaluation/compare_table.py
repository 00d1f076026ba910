"""A comparison of two runs as text for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mupo_ray.runs.summary import aligned

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mupo_ray.evaluation.comparison import Comparison, Difference, OneSided, SetComparison

_MAX_TEXT = 160


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
    for name, found in comparison.sets.items():
        lines += ["", *_set(name, found, round(100 * comparison.level), num_problems)]
    return "\n".join(lines)


def _set(name: str, found: SetComparison, percent: int, num_problems: int) -> Iterator[str]:
    yield f"{name}: {found.num_shared} problems in both{_unpaired(found)}"
    rows = [["", "a", "b", "b - a", f"{percent} % interval", "p"]]
    if found.greedy is not None:
        g = found.greedy
        split = f"{g.num_only_a} a only, {g.num_only_b} b only"
        figures = [f"{v:.3f}" for v in (g.acc_a, g.acc_b)]
        rows.append(["acc@1", *figures, f"{g.acc_b - g.acc_a:+.3f}", split, _p(g.p_value)])
    for measure, d in _shown(found).items():
        interval = f"{d.low:+.3f} to {d.high:+.3f}"
        figures = [f"{d.a:.3f}", f"{d.b:.3f}", f"{d.difference:+.3f}"]
        rows.append([measure, *figures, interval, _p(d.p_value)])
    yield aligned(rows)
    yield from _correlations(found, percent)
    for label, items in (("a", found.only_a), ("b", found.only_b)):
        other = "b" if label == "a" else "a"
        yield f"{len(items)} problems that {label} solves and {other} never does"
        for item in items[:num_problems]:
            yield from _one_sided(item, label, other)
    for left in found.left_out:
        yield f"left out: {left.measure}: {left.reason}"


def _unpaired(found: SetComparison) -> str:
    if not found.num_only_a and not found.num_only_b:
        return ""
    return f"; left out: {found.num_only_a} only in a, {found.num_only_b} only in b"


def _shown(found: SetComparison) -> dict[str, Difference]:
    """Powers of two and the largest of the k: the file has all."""
    ks = [int(n.removeprefix("pass@")) for n in found.differences if n.startswith("pass@")]
    kept = {f"pass@{k}" for k in ks if k & (k - 1) == 0 or k == max(ks)}
    return {
        name: d
        for name, d in found.differences.items()
        if not name.startswith("pass@") or name in kept
    }


def _correlations(found: SetComparison, percent: int) -> Iterator[str]:
    ks = sorted({k for values in found.diversity_and_pass.values() for k in values})
    if not ks:
        return
    rows = [["Spearman, diversity and", "a", "b", "gains of both"]]
    for k in ks:
        cells = [f"pass@{k}"]
        for values in found.diversity_and_pass.values():
            c = values.get(k)
            cells.append("-" if c is None else f"{c.value:+.2f} ({c.low:+.2f} to {c.high:+.2f})")
        rows.append(cells)
    yield ""
    yield aligned(rows)
    yield f"in brackets: {percent} % interval"
    yield ""


def _one_sided(item: OneSided, label: str, other: str) -> Sequence[str]:
    question = _short(item.question.replace("<image>", ""))
    return (
        f"  {item.prompt_id}  {question}  (gold {_short(item.answer)}; {item.num_right} of "
        f"{item.num_samples} right, 0 of {item.num_samples_other})",
        f"    {label}: {_short(item.right_text)}",
        f"    {other}: {_short(item.wrong_text)}",
    )


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 3]}..."


def _p(value: float) -> str:
    return "<0.001" if value < 0.001 else f"{value:.3f}"
