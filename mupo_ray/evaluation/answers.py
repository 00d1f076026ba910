"""Which samples of a problem give the same answer.

The verifier compares with the gold answer alone, so right samples are known to agree. Wrong ones
agree where they are spelled alike once normalised as the verifier normalises, are the same number,
or pick the same choice; `1/2` and `0.5` are one answer, `x+1` and `1+x` two.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from mupo_ray.rewards.equality.notation import read_number
from mupo_ray.rewards.equality.spelling import key, normalise
from mupo_ray.rewards.equality.words import read_choice

if TYPE_CHECKING:
    from mupo_ray.evaluation.samples import EvaluatedProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerCounts:
    """How a problem's samples vote."""

    num_samples: int
    num_correct: int
    wrong: tuple[int, ...]
    """Samples of each distinct wrong answer, most frequent first. Samples without an answer are in
    none of these."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Samples of each distinct answer, right ones first where there are any."""
        return (self.num_correct, *self.wrong) if self.num_correct else self.wrong


@lru_cache(maxsize=65536)
def answer_key(text: str) -> str:
    """The same text for answers that need no algebra to be seen as equal."""
    spelled = normalise(text)
    if choice := read_choice(spelled):
        return choice
    if number := read_number(spelled):
        return f"{number.value}{'%' if number.is_percent else ''}"
    return key(spelled)


def count_answers(problem: EvaluatedProblem) -> AnswerCounts:
    """Group a problem's samples by answer."""
    wrong = Counter(
        answer_key(response.extracted)
        for response in problem.samples
        if not response.is_correct and response.extracted is not None
    )
    return AnswerCounts(
        num_samples=len(problem.samples),
        num_correct=problem.num_correct,
        wrong=tuple(sorted(wrong.values(), reverse=True)),
    )
