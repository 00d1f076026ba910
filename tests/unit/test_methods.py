"""Methods: rewards, groups and advantages of small cohorts, worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mupo_ray.config import Config
from mupo_ray.methods import Grpo, Mupo, make_method
from mupo_ray.types import Cohort, FinishReason, Prompt, Reason, Response, Verdict

# Three responses reason along the first axis, three along the second: cosine distance 1 between.
TWO_WAYS = np.array([[1, 0], [1, 0], [1, 0], [0, 1], [0, 1], [0, 1]], dtype=np.float32)
RIGHT = [1, 0, 0, 1, 1, 0]
ROOT3 = 3**0.5


def cohort(right: list[int], lengths: list[int] | None = None) -> Cohort:
    """All well formed; only accuracy and lengths differ."""
    tokens = lengths or [4] * len(right)
    return Cohort(
        prompt=Prompt(prompt_id="p", position=0, token_ids=(1,), question="q", answer="a"),
        responses=tuple(
            Response(
                text="t",
                completion_ids=np.zeros(n, dtype=np.int64),
                sampler_logprobs=np.zeros(n, dtype=np.float32),
                finish_reason=FinishReason.STOP,
                policy_version=0,
                seed=i,
                engine=0,
            )
            for i, n in enumerate(tokens)
        ),
        verdicts=tuple(
            Verdict(
                accuracy=float(a),
                format=1.0,
                extracted="a",
                reason=Reason.RIGHT if a else Reason.WRONG,
            )
            for a in right
        ),
    )


def method(name: str, *, reward: dict[str, Any] | None = None, **options: Any) -> Any:
    """Built from a config, as a run does; N = 6, 16 tokens at most, 10 steps."""
    is_mupo = name == "mupo"
    groups = {"num_groups": 2, "min_group_size": 3} if is_mupo else {}
    raises = (
        is_mupo and options.get("reward_form") != "release" and options.get("num_groups", 2) > 1
    )
    return make_method(
        Config.model_validate(
            {
                "rollout": {"num_generations": 6, "max_new_tokens": 16},
                "reward": reward or {},
                "method": {"name": name, **groups, **options},
                "train": {"num_steps": 10},
                "collapse": {"action": "raise_diversity_weight"} if raises else {},
            }
        )
    )


def test_config_names_the_method() -> None:
    assert isinstance(method("grpo"), Grpo)
    assert isinstance(method("mupo"), Mupo)
    assert (method("grpo").needs_embeddings, method("mupo").needs_embeddings) == (False, True)


@pytest.mark.parametrize("name", ["grpo", "pass_k", "mupo"])
def test_the_factor_of_an_alarm_multiplies_diversity_alone(name: str) -> None:
    plain, raised = method(name), method(name)
    raised.observe({"collapse/weight_factor": 3.0}, 0)
    # The same step of the loop for every method, whatever it rewards.
    (before,), (after,) = (m.score([cohort(RIGHT)], [TWO_WAYS], 0) for m in (plain, raised))
    factors = {part: 3.0 if part == "diversity" else 1.0 for part in before.reward_parts}
    assert ("diversity" in factors) == (name == "mupo")
    for part, factor in factors.items():
        assert after.reward_parts[part] == pytest.approx(factor * before.reward_parts[part]), part
    (again,) = method(name).score([cohort(RIGHT)], [TWO_WAYS], 0)
    assert again.rewards == pytest.approx(before.rewards), "a run's factor is its own"


# Rewards are 1.0 where right and 0.1 where wrong: mean 0.55, deviation from it 0.45.
@pytest.mark.parametrize(
    ("advantage", "expected"),
    [
        # Sample standard deviation of three 1.0 and three 0.1: 0.45 * sqrt(6 / 5).
        ("grpo", (5 / 6) ** 0.5),
        ("dr_grpo", 0.45),
        # Minus the mean of the five others: 1.0 - (2 * 1.0 + 3 * 0.1) / 5.
        ("rloo", 0.54),
    ],
)
def test_grpo_and_relatives(advantage: str, expected: float) -> None:
    (scored,) = method("grpo", advantage=advantage).score([cohort(RIGHT)], None, 0)
    signs = np.where(np.array(RIGHT) == 1, 1.0, -1.0)
    assert scored.rewards == pytest.approx(np.where(signs > 0, 1.0, 0.1))
    assert scored.advantages == pytest.approx(signs * expected, abs=1e-5)
    assert scored.group_ids.tolist() == [0] * 6
    assert scored.reward_parts["accuracy"] == pytest.approx(0.9 * np.array(RIGHT))
    assert scored.reward_parts["format"] == pytest.approx(np.full(6, 0.1))
    assert scored.embeddings is None


def test_a_cohort_of_equal_rewards_has_no_signal() -> None:
    for right in ([0] * 6, [1] * 6):
        (scored,) = method("grpo").score([cohort(right)], None, 0)
        assert scored.advantages.tolist() == [0.0] * 6
        assert scored.num_constant == 1


def test_overlong_responses_lose_reward() -> None:
    # Over 16 - 8 = 8 tokens the penalty grows by 1/8 a token.
    lengths = [4, 8, 9, 12, 15, 16]
    (scored,) = method("grpo", reward={"overlong": {"buffer_tokens": 8, "penalty": 0.5}}).score(
        [cohort(RIGHT, lengths)], None, 0
    )
    part = [0, 0, -0.0625, -0.25, -0.4375, -0.5]
    assert scored.reward_parts["overlong"] == pytest.approx(part)
    assert scored.rewards == pytest.approx(np.array(part) + 0.1 + 0.9 * np.array(RIGHT))


@pytest.mark.parametrize(("weighting", "factor"), [("release", 1.0), ("paper", 2.0)])
def test_mupo_normalises_inside_groups(weighting: str, factor: float) -> None:
    mupo = method("mupo", reward_form="paper", weighting=weighting)
    (scored,) = mupo.score([cohort(RIGHT)], [TWO_WAYS], 0)
    # Right answers earn 0.4 (weight at step 0) * 1 (distance to the other group) more.
    assert scored.reward_parts["diversity"] == pytest.approx(0.4 * np.array(RIGHT))
    assert scored.rewards == pytest.approx(np.where(np.array(RIGHT) == 1, 1.4, 0.1))
    assert scored.group_ids[0] != scored.group_ids[3]
    assert len(set(scored.group_ids[:3])) == len(set(scored.group_ids[3:])) == 1
    # One right of three: z-scores 2, -1, -1 over sqrt(3); two right of three: 1, 1, -2.
    # Equal sizes have release weight 6 / (2 * 3) = 1; the paper's has another 6 / 3.
    expected = factor * np.array([2, -1, -1, 1, 1, -2]) / ROOT3
    assert scored.advantages == pytest.approx(expected, abs=1e-5)


def test_mupo_weighs_groups_by_size() -> None:
    vectors = np.concatenate([TWO_WAYS, TWO_WAYS[-1:]])
    mupo = method("mupo", reward_form="paper", weighting="release", balance=1.0)
    (scored,) = mupo.score([cohort([*RIGHT, 1])], [vectors], 0)
    # Three of seven: weight 7 / (2 * 3); four of seven: 7 / (2 * 4), z-scores of 1, 1, 0, 1.
    assert scored.advantages[:3] == pytest.approx(7 / 6 * np.array([2, -1, -1]) / ROOT3, abs=1e-5)
    assert scored.advantages[3:] == pytest.approx(7 / 8 * np.array([0.5, 0.5, -1.5, 0.5]), abs=1e-5)


def test_mupo_release_form() -> None:
    (scored,) = method("mupo", reward_form="release").score([cohort(RIGHT)], [TWO_WAYS], 0)
    # (1 - 0.1 - 0.4) for accuracy, 0.1 for format, 0.4 * 2 * 1 for diversity.
    parts = scored.reward_parts
    assert parts["accuracy"] == pytest.approx(0.5 * np.array(RIGHT))
    assert parts["diversity"] == pytest.approx(0.8 * np.array(RIGHT))
    assert scored.rewards == pytest.approx(np.where(np.array(RIGHT) == 1, 1.4, 0.1))


@pytest.mark.parametrize("reward_form", ["paper", "release"])
@pytest.mark.parametrize("without", ["one group", "no embeddings"])
def test_mupo_without_groups_is_grpo(reward_form: str, without: str) -> None:
    options: dict[str, Any] = (
        {"num_groups": 1, "min_group_size": 6} if without == "one group" else {}
    )
    mupo = method("mupo", reward_form=reward_form, weighting="release", **options)
    vectors = [TWO_WAYS] if without == "one group" else None
    (scored,) = mupo.score([cohort(RIGHT)], vectors, 0)
    (plain,) = method("grpo").score([cohort(RIGHT)], None, 0)
    assert scored.rewards == pytest.approx(plain.rewards)
    assert scored.advantages == pytest.approx(plain.advantages)
    assert scored.group_ids.tolist() == [0] * 6


def test_order_of_responses_and_of_cohorts_does_not_matter() -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(6, 5)).astype(np.float32)
    order = rng.permutation(6)
    mupo = method("mupo")
    (scored,) = mupo.score([cohort(RIGHT)], [vectors], 0)
    shuffled = cohort([RIGHT[i] for i in order])
    other, again = mupo.score([cohort([0] * 6), shuffled], [vectors, vectors[order]], 0)
    assert again.advantages == pytest.approx(scored.advantages[order])
    assert again.rewards == pytest.approx(scored.rewards[order])
    assert other.advantages.tolist() == [0.0] * 6
    assert other.num_constant == 2


def test_diversity_weight_falls_over_the_run() -> None:
    cosine = method("mupo")
    assert [cosine.diversity_weight(s) for s in (0, 5, 10)] == pytest.approx([0.4, 0.25, 0.1])
    slow = method(
        "mupo", diversity_weight={"name": "exponential", "start": 0.2, "decay": np.log(2) / 5}
    )
    assert [slow.diversity_weight(s) for s in (0, 5, 10)] == pytest.approx([0.2, 0.1, 0.05])
    assert cosine.metrics(5) == {"reward/diversity_weight": pytest.approx(0.25)}
    assert method("grpo").metrics(5) == {}


def test_min_std_tames_groups_of_right_answers_only() -> None:
    # All right; distances to the other group differ by little, and so do the rewards.
    vectors = TWO_WAYS.copy()
    vectors[0] = [np.cos(0.01), np.sin(0.01)]
    (wild,) = method("mupo").score([cohort([1] * 6)], [vectors], 0)
    (tame,) = method("mupo", min_std=0.1).score([cohort([1] * 6)], [vectors], 0)
    assert np.abs(wild.advantages).max() > 1
    assert 0 < np.abs(tame.advantages).max() < 0.1
    assert (wild.num_floored, tame.num_floored) == (0, 1)
