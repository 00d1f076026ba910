"""Which problems of an evaluation a report shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mupo_ray.core.diversity import pairwise_diversity

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mupo_ray.evaluation.samples import EvaluatedProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A problem with the answers of each model that has any."""

    key: str
    """Begins the ids of the problem's elements."""
    why: str
    """Plain text: the rule that chose it."""
    answers: dict[str, EvaluatedProblem]
    """Model -> its answers, in the report's order of models."""

    @property
    def problem(self) -> EvaluatedProblem:
        """The problem itself, whoever answered it."""
        return next(iter(self.answers.values()))


def choose(
    by_model: Mapping[str, Sequence[EvaluatedProblem]], num_each: int
) -> list[tuple[str, dict[str, EvaluatedProblem]]]:
    """Problems of a set to show: the most divergent, the worst, and the first ones.

    Args:
        by_model: model -> its problems of the set.
        num_each: problems by each rule; one that several rules choose counts for the first.

    Returns:
        Why, and the answers of each model.
    """
    answers: dict[str, dict[str, EvaluatedProblem]] = {}
    for model, problems in by_model.items():
        for problem in problems:
            if problem.samples:
                answers.setdefault(problem.prompt_id, {})[model] = problem
    ids = sorted(answers, key=lambda i: (next(iter(answers[i].values())).position, i))
    diversity = {i: _mean(map(_diversity, answers[i].values())) for i in ids}
    right = {i: _mean(_right_frac(p) for p in answers[i].values()) for i in ids}
    divergent = [i for i in ids if diversity[i] > 0.0]
    rules = (
        ("most divergent", sorted(divergent, key=lambda i: -diversity[i])),
        ("fewest right", sorted(ids, key=lambda i: right[i])),
        ("first of the set", ids),
    )
    taken: dict[str, str] = {}
    for why, order in rules:
        for i in [i for i in order if i not in taken][:num_each]:
            taken[i] = why
    return [(why, answers[i]) for i, why in taken.items()]


def _diversity(problem: EvaluatedProblem) -> float:
    return 0.0 if problem.embeddings is None else pairwise_diversity(problem.embeddings)


def _right_frac(problem: EvaluatedProblem) -> float:
    return problem.num_correct / len(problem.samples)


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))
