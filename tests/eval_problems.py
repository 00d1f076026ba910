"""Evaluated problems for tests of measures and comparisons."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mupo_ray.evaluation.samples import EvaluatedProblem, JudgedResponse

RIGHT = "7"


def response(extracted: str | None, *, text: str = "", score: float | None = None):
    """A sample; right where it says what every problem of these tests wants."""
    is_right = extracted == RIGHT
    return JudgedResponse(
        text=text or f"says {extracted}",
        num_tokens=10,
        is_truncated=extracted is None,
        accuracy=float(is_right),
        format=float(extracted is not None),
        extracted=extracted,
        reason="right" if is_right else "no_answer" if extracted is None else "wrong",
        score=score,
    )


def problem(
    name: str,
    answers: Sequence[str | None],
    *,
    greedy: str | None = "none",
    category: str | None = None,
    texts: Sequence[str] | None = None,
    scores: Sequence[float] | None = None,
    embeddings: np.ndarray | None = None,
    question: str = "how many ?",
    set_name: str = "heldout",
) -> EvaluatedProblem:
    """One problem whose samples extract `answers`; `greedy="none"` asks for no greedy answer."""
    return EvaluatedProblem(
        set_name=set_name,
        prompt_id=name,
        position=0,
        question=question,
        answer=RIGHT,
        category=category,
        greedy=None if greedy == "none" else response(greedy),
        samples=tuple(
            response(
                answer,
                text="" if texts is None else texts[i],
                score=None if scores is None else scores[i],
            )
            for i, answer in enumerate(answers)
        ),
        embeddings=embeddings,
    )
