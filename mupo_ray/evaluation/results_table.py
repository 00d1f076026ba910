"""Results of an evaluation as a table for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mupo_ray.runs.summary import aligned

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mupo_ray.evaluation.results import Estimate, Estimates, EvalResults

# In front of the measures of k, of which the file has all.
_BEFORE_K = ("acc@1", "acc@1_sampled")


def results_table(results: EvalResults, ks: Sequence[int] = ()) -> str:
    """A column a set, and the means over all problems and over sets where there are several.

    A cell is a value and its interval; a dash stands for what could not be measured.

    Args:
        results: of one model.
        ks: whose measures have a row; the powers of two that were measured where empty.
    """
    columns = {name: found.micro for name, found in results.sets.items()}
    if results.micro is not None and results.macro is not None:
        columns |= {"all problems": results.micro, "mean of sets": results.macro}
    return _table("", columns, ks)


def models_table(results: Mapping[str, EvalResults]) -> str:
    """For each set a column a model, as in `results_table`."""
    names = dict.fromkeys(name for found in results.values() for name in found.sets)
    return "\n\n".join(
        _table(name, {m: r.sets[name].micro for m, r in results.items() if name in r.sets})
        for name in names
    )


def _table(corner: str, columns: Mapping[str, Estimates], ks: Sequence[int] = ()) -> str:
    cells = {name: _cells(estimates, ks) for name, estimates in columns.items()}
    names = dict.fromkeys(name for found in cells.values() for name in found)
    rows = [[corner, *columns]]
    rows.append(["problems", *(str(found.num_problems) for found in columns.values())])
    rows += [[name, *(found.get(name, "-") for found in cells.values())] for name in names]
    return aligned(rows)


def _cells(found: Estimates, ks: Sequence[int]) -> dict[str, str]:
    shown: dict[str, Estimate | None] = {
        name: found.measures[name] for name in _BEFORE_K if name in found.measures
    }
    for label, by_k in (("pass@", found.pass_at_k), ("majority@", found.majority_at_k)):
        # pass@1 is acc@1_sampled by definition.
        chosen = ks or [k for k in by_k if k > 1 and k & (k - 1) == 0]
        shown |= {f"{label}{k}": by_k.get(k) for k in chosen}
    shown |= {name: e for name, e in found.measures.items() if name not in shown}
    return {name: "-" if e is None else _cell(e) for name, e in shown.items()}


def _cell(estimate: Estimate) -> str:
    digits = 3 if abs(estimate.value) < 10 else 1
    value = f"{estimate.value:.{digits}f}"
    if estimate.low is None or estimate.high is None:
        return value
    return f"{value} [{estimate.low:.{digits}f}, {estimate.high:.{digits}f}]"
