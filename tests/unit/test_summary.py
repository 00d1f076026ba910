"""Metrics of a step over ranks, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from mupo_ray.observability.metrics import check
from mupo_ray.train.stages import Embedded, SampledStep
from mupo_ray.train.summary import join, record_step
from mupo_ray.types import (
    Cohort,
    FinishReason,
    Prompt,
    Reason,
    Response,
    ScoredCohort,
    Verdict,
)


def scored(position: int, *, right: int, lengths: list[int], longest: int = 8) -> ScoredCohort:
    """The first `right` responses are right and earn 1, the others nothing; two groups."""
    count = len(lengths)
    rewards = np.array([1.0] * right + [0.0] * (count - right))
    cohort = Cohort(
        prompt=Prompt(
            prompt_id=f"p{position}", position=position, token_ids=(1,), question="q", answer="a"
        ),
        responses=tuple(
            Response(
                text="t",
                completion_ids=np.zeros(n, dtype=np.int64),
                sampler_logprobs=np.zeros(n, dtype=np.float32),
                finish_reason=FinishReason.LENGTH if n >= longest else FinishReason.STOP,
                policy_version=0,
                seed=0,
                engine=0,
            )
            for n in lengths
        ),
        verdicts=tuple(
            Verdict(
                accuracy=float(i < right),
                format=0.5,
                extracted=None,
                reason=Reason.RIGHT if i < right else Reason.NO_ANSWER,
            )
            for i in range(count)
        ),
    )
    return ScoredCohort(
        cohort=cohort,
        reward_parts={"accuracy": rewards, "diversity": 0.5 * rewards},
        rewards=1.5 * rewards,
        group_ids=np.array([0] * (count - 2) + [4, 4]),
        advantages=np.array([2.0] * right + [0.0] * (count - right)),
        embeddings=np.eye(count, dtype=np.float32),
        num_constant=1,
        num_floored=0,
    )


FIRST = scored(0, right=1, lengths=[2, 4, 8, 2])
SECOND = scored(1, right=3, lengths=[1, 1, 1, 1, 9])
SAMPLED = SampledStep(cohorts=[], rounds=2, sampled=4, dropped_right=2, dropped_wrong=1)


def sampled(*kept: ScoredCohort) -> SampledStep:
    return SampledStep(
        cohorts=[s.cohort for s in kept], rounds=2, sampled=4, dropped_right=2, dropped_wrong=1
    )


EMBEDDED = Embedded(embeddings=[np.eye(4)], cache_hit_frac=0.25)


def test_numbers_of_one_rank() -> None:
    metrics = record_step(
        [FIRST, SECOND], sampled(FIRST, SECOND), EMBEDDED, ("diversity",)
    ).metrics()
    rewards = [1.5, 0, 0, 0, 1.5, 1.5, 1.5, 0, 0]
    assert metrics == pytest.approx(
        {
            "reward/accuracy/mean": 4 / 9,
            "reward/format/mean": 0.5,
            "reward/diversity/mean": 2 / 9,
            "reward/total/mean": 6 / 9,
            "reward/total/std": np.std(rewards),
            "response/length/mean": 29 / 9,
            "response/length/max": 9,
            "response/length/min": 1,
            "response/truncated/frac": 2 / 9,
            "group/size/min": 2,
            "group/size/max": 3,
            "group/constant_frac": 2 / 4,
            "group/floored_frac": 0,
            # Orthogonal embeddings: distance 1, as many strategies as responses.
            "diversity/pairwise": 1,
            "diversity/effective": 4.5,
            "advantage/abs_mean": 8 / 9,
            "advantage/zero_frac": 5 / 9,
            "filter/kept_frac": 2 / 4,
            "filter/rounds": 2,
            "filter/dropped_right": 2,
            "filter/dropped_wrong": 1,
            "embed/cache_hit_frac": 0.25,
            "embed/fallbacks": 0,
            **{f"verdict/{reason}/frac": 0 for reason in Reason},
            "verdict/right/frac": 4 / 9,
            "verdict/no_answer/frac": 5 / 9,
        }
    )
    for key in metrics:
        check(key)


def test_a_part_that_is_not_the_methods_own_is_an_extra_one() -> None:
    metrics = record_step([FIRST], sampled(FIRST), EMBEDDED).metrics()
    assert metrics["reward/extra/diversity/mean"] == 0.5 / 4
    assert "reward/diversity/mean" not in metrics


def test_two_ranks_give_the_numbers_of_one() -> None:
    one = record_step([FIRST, SECOND], sampled(FIRST, SECOND), EMBEDDED)
    ranks = [record_step([s], sampled(s), EMBEDDED) for s in (SECOND, FIRST)]
    whole = join(ranks)
    assert whole.order == one.order == [(0, "p0"), (1, "p1")]
    assert whole.num_tokens == one.num_tokens == 29
    alone, together = one.metrics(), whole.metrics()
    counts = {"filter/kept_frac", "filter/dropped_right", "filter/dropped_wrong"}
    assert {k: v for k, v in together.items() if k not in counts} == pytest.approx(
        {k: v for k, v in alone.items() if k not in counts}
    )
    assert together["filter/dropped_right"] == 4
    assert together["filter/kept_frac"] == 2 / 8


def test_a_rank_without_data_adds_nothing() -> None:
    idle = record_step([], SampledStep(cohorts=[], rounds=2), Embedded(embeddings=None))
    busy = record_step([FIRST], sampled(FIRST), EMBEDDED)
    assert join([busy, idle]).metrics() == busy.metrics()


def test_a_step_without_data_leaves_out_what_was_not_measured() -> None:
    metrics = record_step([], SAMPLED, Embedded(embeddings=None, fallbacks=0)).metrics()
    assert metrics == {
        "filter/kept_frac": 0.0,
        "filter/rounds": 2.0,
        "filter/dropped_right": 2.0,
        "filter/dropped_wrong": 1.0,
        "embed/fallbacks": 0.0,
    }
