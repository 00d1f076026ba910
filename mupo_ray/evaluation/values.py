"""What each problem of an evaluation shows: one number a problem and measure.

Shapes: P = problems, K = values of k. NaN stands for a problem that has no value of a measure, for
instance no greedy answer; means are over the others.

The measures here are those of every set. Problems of one kind may show more: who knows the kind
hands in `FurtherMeasures`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mupo_ray.core.diversity import effective_strategies_of_embeddings, pairwise_diversity
from mupo_ray.core.passk import any_of_k, pass_at_k_table
from mupo_ray.core.voting import best_of_k, majority_at_k
from mupo_ray.evaluation.answers import count_answers

if TYPE_CHECKING:
    from mupo_ray.evaluation.samples import EvaluatedProblem

Floats = NDArray[np.float64]

NO_SAMPLES = "no problem has samples"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureRow:
    """A measure of P problems."""

    values: Floats
    """[P]; NaN where a problem has no value."""
    bounds: tuple[float, float] = (0.0, 1.0)
    """Least and greatest value that the measure can have."""
    weights: Floats | None = None
    """[P] how much each problem counts; None counts them alike."""
    why_none: str = NO_SAMPLES
    """Reason to give where no problem has a value."""


FurtherMeasures: TypeAlias = Callable[[Sequence["EvaluatedProblem"]], Mapping[str, MeasureRow]]
"""Name -> measure of some problems; nothing where they are not of the kind that it knows."""


def fewest_samples(problems: Sequence[EvaluatedProblem]) -> int:
    """The largest k that every problem has samples for; 0 without problems."""
    return min((len(problem.samples) for problem in problems), default=0)


def plain_values(problems: Sequence[EvaluatedProblem], measure: str) -> Floats:
    """[P] values of one of `PLAIN_MEASURES`."""
    value_of = PLAIN_MEASURES[measure]
    return np.array([value_of(problem) for problem in problems], np.float64)


def pass_values(problems: Sequence[EvaluatedProblem], ks: Sequence[int]) -> Floats:
    """[K, P] unbiased pass@k."""
    return pass_at_k_table([(len(p.samples), p.num_correct) for p in problems], ks)


def any_values(problems: Sequence[EvaluatedProblem], ks: Sequence[int]) -> Floats:
    """[K, P] share of disjoint blocks of k samples with a right one."""
    flags = [[response.is_correct for response in p.samples] for p in problems]
    return np.stack([any_of_k(flags, k) for k in ks])


def majority_values(problems: Sequence[EvaluatedProblem], ks: Sequence[int]) -> Floats:
    """[K, P] chance that the most frequent answer of k samples is right."""
    votes = [count_answers(problem) for problem in problems]
    return np.stack(
        [majority_at_k(v.num_samples, v.num_correct, v.wrong, ks) for v in votes], axis=1
    )


def best_values(problems: Sequence[EvaluatedProblem], ks: Sequence[int]) -> Floats:
    """[K, P] chance that the best-scored of k samples is right; NaN where one has no score."""
    columns = []
    for problem in problems:
        scores = [response.score for response in problem.samples]
        flags = [response.is_correct for response in problem.samples]
        known = np.array([np.nan if score is None else score for score in scores], np.float64)
        is_known = not np.isnan(known).any()
        columns.append(best_of_k(flags, known, ks) if is_known else np.full(len(ks), np.nan))
    return np.stack(columns, axis=1)


def entropy(counts: Sequence[int]) -> float:
    """Nat: entropy of the shares of these counts, at least one of them above 0."""
    shares = np.array([count for count in counts if count], np.float64)
    shares /= shares.sum()
    return max(0.0, float(-(shares * np.log(shares)).sum()))


def _greedy_accuracy(problem: EvaluatedProblem) -> float:
    return np.nan if problem.greedy is None else float(problem.greedy.is_correct)


def _sampled_accuracy(problem: EvaluatedProblem) -> float:
    return problem.num_correct / len(problem.samples) if problem.samples else np.nan


def _diversity(problem: EvaluatedProblem) -> float:
    vectors = problem.embeddings
    return np.nan if vectors is None or len(vectors) < 2 else pairwise_diversity(vectors)


def _effective_strategies(problem: EvaluatedProblem) -> float:
    vectors = problem.embeddings
    if vectors is None or len(vectors) < 2:
        return np.nan
    return effective_strategies_of_embeddings(vectors)


def _answer_entropy(problem: EvaluatedProblem) -> float:
    sizes = count_answers(problem).sizes
    return entropy(sizes) if sizes else np.nan


def _length(problem: EvaluatedProblem) -> float:
    return _mean([response.num_tokens for response in problem.samples])


def _truncated(problem: EvaluatedProblem) -> float:
    return _mean([response.is_truncated for response in problem.samples])


def _format(problem: EvaluatedProblem) -> float:
    return _mean([response.format for response in problem.samples])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else np.nan


PLAIN_MEASURES: dict[str, Callable[[EvaluatedProblem], float]] = {
    "acc@1": _greedy_accuracy,
    "acc@1_sampled": _sampled_accuracy,
    "diversity": _diversity,
    "effective_strategies": _effective_strategies,
    "answer_entropy": _answer_entropy,
    "length": _length,
    "truncated_frac": _truncated,
    "format": _format,
}
"""Measure -> its value of one problem; those without a k."""
