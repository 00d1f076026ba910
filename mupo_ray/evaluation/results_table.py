"""Results of an evaluation as a table for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mupo_ray.evaluation.summary import aligned

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mupo_ray.evaluation.results import Estimate, Estimates, EvalResults

# In front of the measures of k; of those the table has the powers of two, the file has all.
_BEFORE_K = ("acc@1", "acc@1_sampled")


def results_table(results: EvalResults) -> str:
    """A column a set, and the means over all problems and over sets where there are several.

    A cell is a value and its interval; a dash stands for what could not be measured.
    """
    columns = {name: found.micro for name, found in results.sets.items()}
    if results.micro is not None and results.macro is not None:
        columns |= {"all problems": results.micro, "mean of sets": results.macro}
    return _table("", columns)


def models_table(results: Mapping[str, EvalResults]) -> str:
    """For each set a column a model, as in `results_table`."""
    names = dict.fromkeys(name for found in results.values() for name in found.sets)
    return "\n\n".join(
        _table(name, {m: r.sets[name].micro for m, r in results.items() if name in r.sets})
        for name in names
    )


def _table(corner: str, columns: Mapping[str, Estimates]) -> str:
    cells = {name: _cells(estimates) for name, estimates in columns.items()}
    names = dict.fromkeys(name for found in cells.values() for name in found)
    rows = [[corner, *columns]]
    rows.append(["problems", *(str(found.num_problems) for found in columns.values())])
    rows += [[name, *(found.get(name, "-") for found in cells.values())] for name in names]
    return aligned(rows)


def _cells(found: Estimates) -> dict[str, str]:
    shown = {name: found.measures[name] for name in _BEFORE_K if name in found.measures}
    for label, by_k in (("pass@", found.pass_at_k), ("majority@", found.majority_at_k)):
        shown |= {f"{label}{k}": e for k, e in by_k.items() if k > 1 and k & (k - 1) == 0}
    shown |= {name: e for name, e in found.measures.items() if name not in shown}
    if found.strategies is not None and found.strategies.fidelity is not None:
        shown["fidelity"] = found.strategies.fidelity
    return {name: _cell(estimate) for name, estimate in shown.items()}


def _cell(estimate: Estimate) -> str:
    digits = 3 if abs(estimate.value) < 10 else 1
    value = f"{estimate.value:.{digits}f}"
    if estimate.low is None or estimate.high is None:
        return value
    return f"{value} [{estimate.low:.{digits}f}, {estimate.high:.{digits}f}]"
