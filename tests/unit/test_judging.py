"""Records of problems out of responses: the same for an evaluation and for one in training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mupo_ray.evaluation.judging import Question, embed_problems, judge_problems
from mupo_ray.rewards.algebra_pool import default_algebra_pool
from mupo_ray.rewards.extra import ExtraReward
from mupo_ray.rewards.verdicts import Verifier
from mupo_ray.types import FinishReason, Prompt, Response, RgbImage, SampledResponse


def prompt(number: int, **meta: str) -> Prompt:
    return Prompt(
        prompt_id=f"p{number}",
        position=number,
        token_ids=(1, 2),
        images=(RgbImage(sha256=f"sha{number}", width=1, height=1, rgb=b"rgb"),),
        question=f"q{number}",
        answer=str(number),
        meta=meta,
    )


def said(text: str, num_tokens: int = 3, *, is_truncated: bool = False) -> SampledResponse:
    return SampledResponse(text=text, num_tokens=num_tokens, is_truncated=is_truncated)


class Lengths:
    """Embeds a text as its length without blanks around it."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def embed(self, texts: list[str]) -> tuple[np.ndarray, float]:
        self.asked += texts
        return np.array([[len(text.strip())] for text in texts], np.float32), 0.0


def never(*_: Any) -> float:
    raise AssertionError("an evaluation asks no reward of the user's own")


def test_a_record_has_all_of_its_prompt_but_the_pixels() -> None:
    verifier = Verifier(
        algebra_pool=default_algebra_pool(),
        extra=(ExtraReward(name="own", path="own:never", function=never),),
    )
    questions = [Question.of(prompt(4, category="odd", source="x")), Question.of(prompt(5))]
    assert questions[0].prompt.images == () and questions[0].prompt.token_ids == ()
    one, two = judge_problems(
        "heldout",
        questions,
        [[said(r"<think>g</think>\boxed{4}")], []],
        [[said(r"\boxed{3}", 7, is_truncated=True), said(r"\boxed{4}")], [said(r"\boxed{5}")]],
        verifier,
    )
    assert (one.set_name, one.prompt_id, one.position) == ("heldout", "p4", 4)
    assert (one.question, one.answer, one.image_sha256) == ("q4", "4", ("sha4",))
    assert (one.category, one.meta) == ("odd", {"category": "odd", "source": "x"})
    assert one.greedy is not None and (one.greedy.is_correct, one.greedy.format) == (True, 1.0)
    assert [(r.accuracy, r.extracted, r.reason) for r in one.samples] == [
        (0.0, "3", "wrong"),
        (1.0, "4", "right"),
    ]
    assert [(r.num_tokens, r.is_truncated) for r in one.samples] == [(7, True), (3, False)]
    # No greedy answer was asked for: the only one is a sample.
    assert two.greedy is None and two.category is None
    assert [r.is_correct for r in two.samples] == [True]
    assert one.embeddings is None


def test_the_reasoning_of_two_samples_or_more_is_embedded() -> None:
    texts = [["a", "bbb"], ["cc"], [], ["dddd", "ee", "f"]]
    problems = judge_problems(
        "heldout",
        [Question.of(prompt(i)) for i in range(4)],
        [[said("<think>greedy</think>")] for _ in texts],
        [[said(rf"{text} \boxed{{1}}") for text in given] for given in texts],
        Verifier(algebra_pool=default_algebra_pool()),
    )
    embedder = Lengths()
    embedded = embed_problems(problems, embedder)  # type: ignore[arg-type]
    assert [text.strip() for text in embedder.asked] == ["a", "bbb", "dddd", "ee", "f"]
    found = [None if p.embeddings is None else p.embeddings[:, 0].tolist() for p in embedded]
    assert found == [[1, 3], None, None, [4, 2, 1]]
    assert [p.samples for p in embedded] == [p.samples for p in problems]


def test_nothing_is_asked_of_the_embedder_where_nothing_compares() -> None:
    embedder = Lengths()
    problems = judge_problems(
        "heldout",
        [Question.of(prompt(1))],
        [[]],
        [[said("<think>a</think>")]],
        Verifier(algebra_pool=default_algebra_pool()),
    )
    assert embed_problems(problems, embedder) == problems  # type: ignore[arg-type]
    assert embedder.asked == []


@pytest.mark.parametrize(("reason", "is_cut"), [("stop", False), ("length", True)])
def test_what_is_kept_of_an_engines_response(reason: str, is_cut: bool) -> None:
    response = Response(
        text="t",
        completion_ids=np.arange(5),
        sampler_logprobs=np.zeros(5, np.float32),
        finish_reason=FinishReason(reason),
        policy_version=2,
        seed=1,
        engine=0,
    )
    assert SampledResponse.of(response) == said("t", 5, is_truncated=is_cut)
