"""Problems that one run solves and another never does, with a response of each."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from mupo_ray.evaluation.answers import answer_key
from mupo_ray.evaluation.comparison import OneSided

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mupo_ray.evaluation.samples import EvaluatedProblem, JudgedResponse


def one_sided(
    pairs: Sequence[tuple[EvaluatedProblem, EvaluatedProblem]],
) -> tuple[OneSided, ...]:
    """Problems that the first of each pair solves and the second never does.

    Solved is a problem with a right answer among samples and greedy one; never solved one with
    none among both.

    Args:
        pairs: a problem as each run answered it.

    Returns:
        Most often solved first: one right answer of sixteen is little evidence.
    """
    found = []
    for solver, other in pairs:
        right = [r for r in _responses(solver) if r.is_correct]
        wrong = _responses(other)
        if not right or not wrong or any(r.is_correct for r in wrong):
            continue
        found.append(
            OneSided(
                prompt_id=solver.prompt_id,
                question=solver.question,
                answer=solver.answer,
                category=solver.category,
                num_right=solver.num_correct,
                num_samples=len(solver.samples),
                num_samples_other=len(other.samples),
                right_text=right[0].text,
                wrong_text=_typical(wrong).text,
            )
        )
    return tuple(sorted(found, key=lambda item: -item.num_right))


def _responses(problem: EvaluatedProblem) -> tuple[JudgedResponse, ...]:
    greedy = () if problem.greedy is None else (problem.greedy,)
    return (*problem.samples, *greedy)


def _typical(responses: Sequence[JudgedResponse]) -> JudgedResponse:
    keys = [None if r.extracted is None else answer_key(r.extracted) for r in responses]
    given = Counter(key for key in keys if key is not None).most_common(1)
    return responses[keys.index(given[0][0])] if given else responses[0]
