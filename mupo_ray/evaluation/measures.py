"""From judged samples to `results.json`: every measure with its interval, or why it is left out.

    problems --values.py--> a row a measure: one number a problem
             --score_interval--> Estimates over all problems, a category, the mean of categories

docs/evaluation.md has the formulas.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mupo_ray.core.intervals import score_interval
from mupo_ray.evaluation.results import (
    Estimate,
    Estimates,
    EvalResults,
    IntervalSettings,
    LeftOut,
    SamplingSettings,
    SetResults,
)
from mupo_ray.evaluation.values import (
    NO_SAMPLES,
    PLAIN_MEASURES,
    MeasureRow,
    any_values,
    best_values,
    fewest_samples,
    majority_values,
    pass_values,
    plain_values,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from mupo_ray.evaluation.samples import EvaluatedProblem
    from mupo_ray.evaluation.values import FurtherMeasures

    Places = NDArray[np.intp]

LEVEL = 0.95
"""Level of the intervals where no other is asked for."""

# Kind of measure -> its [K, P] values; a name in tables is `pass@4`, `best@4`.
_OF_K = {
    "pass@": pass_values,
    "any@": any_values,
    "majority@": majority_values,
    "best@": best_values,
}
_NO_VECTORS = "no problem has embeddings of two samples or more"
_WHY_NONE = {
    "acc@1": "no problem has a greedy answer",
    "diversity": _NO_VECTORS,
    "effective_strategies": _NO_VECTORS,
    "answer_entropy": "no sample has an answer",
    "best@": "no problem has a score of each of its samples",
}


def measure_evaluation(
    sets: Mapping[str, Sequence[EvaluatedProblem]],
    *,
    model: str,
    created: str,
    sampling: SamplingSettings,
    data: Mapping[str, str] = MappingProxyType({}),
    ks: Collection[int] = (),
    level: float = LEVEL,
    further: FurtherMeasures | None = None,
) -> EvalResults:
    """Measure all sets of an evaluation.

    Args:
        sets: name -> its problems.
        model: what was evaluated.
        created: when, ISO 8601.
        sampling: how.
        data: name of a set -> where its problems came from, as far as it is known.
        ks: values of k that are listed as left out where they cannot be estimated. All k from 1 to
            the fewest samples of a problem are measured in any case.
        level: of the intervals.
        further: measures of problems of one kind, beside those of every set.

    Raises:
        ValueError: no sets, or one without problems.
    """
    if not sets:
        raise ValueError("sets is empty; at least one is needed")
    for name, problems in sets.items():
        if not problems:
            raise ValueError(f"set {name!r} has no problems; at least one is needed")
    limit = sampling.max_new_tokens
    micro = macro = None
    if len(sets) > 1:
        union = [p for problems in sets.values() for p in problems]
        everything = _Table.of(union, limit, ks, further)
        ends = np.cumsum([len(problems) for problems in sets.values()])
        micro = everything.estimates([np.arange(ends[-1])], level)
        macro = everything.estimates(np.split(np.arange(ends[-1]), ends[:-1]), level)
    return EvalResults(
        model=model,
        created=created,
        sampling=sampling,
        intervals=IntervalSettings(level=level),
        sets={
            name: replace(
                measure_set(problems, limit=limit, ks=ks, level=level, further=further),
                data=data.get(name),
            )
            for name, problems in sets.items()
        },
        micro=micro,
        macro=macro,
    )


def measure_set(
    problems: Sequence[EvaluatedProblem],
    *,
    limit: int,
    ks: Collection[int] = (),
    level: float = LEVEL,
    further: FurtherMeasures | None = None,
) -> SetResults:
    """Measure one set: all its problems, each category, and the mean of categories.

    Args:
        problems: of the set.
        limit: most tokens that a response may have.
        ks: as for `measure_evaluation`.
        level: of the intervals.
        further: as for `measure_evaluation`.

    Raises:
        ValueError: no problems.
    """
    if not problems:
        raise ValueError("problems is empty; at least one is needed")
    measured = _Table.of(problems, limit, ks, further)
    categories = [problem.category for problem in problems]
    places = {
        name: np.flatnonzero([category == name for category in categories])
        for name in sorted({category for category in categories if category is not None})
    }
    has_all = bool(places) and None not in categories
    return SetResults(
        micro=measured.estimates([np.arange(len(categories))], level),
        macro=measured.estimates(list(places.values()), level) if has_all else None,
        by_category={name: measured.estimates([place], level) for name, place in places.items()},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """All measures of some problems, out of which estimates over any of them are made."""

    problems: Sequence[EvaluatedProblem]
    rows: dict[str, MeasureRow]
    without_k: tuple[str, ...]
    """Names of those that no k belongs to."""
    fewest: int
    ks_beyond: tuple[int, ...]
    """Those asked for that the samples do not reach."""

    @classmethod
    def of(
        cls,
        problems: Sequence[EvaluatedProblem],
        limit: int,
        ks: Collection[int],
        further: FurtherMeasures | None,
    ) -> _Table:
        plain = _plain_rows(problems, limit)
        own = further(problems) if further else {}
        fewest = fewest_samples(problems)
        measured_ks = range(1, fewest + 1)
        of_k = {}
        for kind, values_of in _OF_K.items() if fewest else ():
            why_none = _WHY_NONE.get(kind, NO_SAMPLES)
            for k, values in zip(measured_ks, values_of(problems, measured_ks), strict=True):
                of_k[f"{kind}{k}"] = MeasureRow(values=values, why_none=why_none)
        return cls(
            problems=problems,
            rows={**plain, **of_k, **own},
            without_k=(*plain, *own),
            fewest=fewest,
            ks_beyond=tuple(sorted({k for k in ks if k > fewest})),
        )

    def estimates(self, parts: Sequence[Places], level: float) -> Estimates:
        by_name = {name: _estimate(row, parts, level) for name, row in self.rows.items()}
        known = {name: estimate for name, estimate in by_name.items() if estimate is not None}
        members = [self.problems[i] for part in parts for i in part]
        reasons = Counter(r.reason for problem in members for r in problem.samples)
        return Estimates(
            num_problems=len(members),
            num_samples=reasons.total(),
            measures={name: known[name] for name in self.without_k if name in known},
            pass_at_k=self._of_k(known, "pass@"),
            any_of_k=self._of_k(known, "any@"),
            majority_at_k=self._of_k(known, "majority@"),
            best_of_k=self._of_k(known, "best@"),
            reasons=dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0]))),
            left_out=self._left_out(known, has_parts=len(parts) > 1),
        )

    def _of_k(self, known: Mapping[str, Estimate], kind: str) -> dict[int, Estimate]:
        names = {k: f"{kind}{k}" for k in range(1, self.fewest + 1)}
        return {k: known[name] for k, name in names.items() if name in known}

    def _left_out(self, known: Mapping[str, Estimate], *, has_parts: bool) -> tuple[LeftOut, ...]:
        # A measure of k is there for all k or for none, but for those beyond the samples.
        missing = {
            "best@k" if name.startswith("best@") else name: row.why_none
            for name, row in self.rows.items()
            if name not in known
        }
        where = "; the mean needs a value of each part" if has_parts else ""
        left_out = [LeftOut(measure=name, reason=why + where) for name, why in missing.items()]
        for k in self.ks_beyond:
            reason = f"needs {k} samples of every problem; the fewest are {self.fewest}"
            left_out += [LeftOut(measure=f"{kind}{k}", reason=reason) for kind in _OF_K]
        return tuple(left_out)


def _plain_rows(problems: Sequence[EvaluatedProblem], limit: int) -> dict[str, MeasureRow]:
    """The measures of every set that have no k."""
    most = max(max((len(problem.samples) for problem in problems), default=0), 2)
    longest = max((r.num_tokens for problem in problems for r in problem.samples), default=0)
    # Those that are no shares.
    bounds = {
        "diversity": (0.0, 2.0),
        "effective_strategies": (0.0, float(most)),
        "answer_entropy": (0.0, math.log(most)),
        "length": (0.0, float(max(limit, longest))),
    }
    return {
        name: MeasureRow(
            values=plain_values(problems, name),
            bounds=bounds.get(name, (0.0, 1.0)),
            why_none=_WHY_NONE.get(name, NO_SAMPLES),
        )
        for name in PLAIN_MEASURES
    }


def _estimate(row: MeasureRow, parts: Sequence[Places], level: float) -> Estimate | None:
    """Mean over parts of the mean over each; None where a part has no value."""
    known = [part[~np.isnan(row.values[part])] for part in parts]
    if not all(part.size for part in known):
        return None
    interval = score_interval(
        [row.values[part] for part in known],
        bounds=row.bounds,
        level=level,
        weights=None if row.weights is None else [row.weights[part] for part in known],
    )
    return Estimate(
        value=interval.value,
        low=interval.low,
        high=interval.high,
        num_problems=sum(part.size for part in known),
    )
