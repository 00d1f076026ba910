"""pass@k advantages: by hand, and against all subsets one by one."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from mupo_ray.config import load_config
from mupo_ray.core.advantage import pass_k
from mupo_ray.errors import ConfigError
from mupo_ray.methods import PassK, make_method


def test_four_responses_one_right_k_2():
    # 3 of 6 pairs hold no right answer: failing 1/2, spread 1/2. Beside a wrong response 2 of 3
    # fail: (1/2 - 2/3) / (1/2) = -1/3.
    result = pass_k([True, False, False, False], 2)
    np.testing.assert_allclose(result.values, [1.0, -1 / 3, -1 / 3, -1 / 3], atol=1e-12)
    assert result.num_constant == 0


@pytest.mark.parametrize("k", [1, 2, 4, 7])
@pytest.mark.parametrize("right", range(9))
def test_mean_of_the_z_scores_of_the_subsets(right: int, k: int):
    flags = np.arange(8) < right
    subsets = list(combinations(range(8), k))
    rewards = np.array([flags[list(s)].any() for s in subsets], float)
    expected = np.zeros(8)
    if rewards.std() > 0:
        scores = (rewards - rewards.mean()) / rewards.std()
        expected = np.array(
            [np.mean([z for s, z in zip(subsets, scores, strict=True) if i in s]) for i in range(8)]
        )
    np.testing.assert_allclose(pass_k(flags, k).values, expected, atol=1e-9)


@pytest.mark.parametrize("flags", [[True, True, True, False], [False] * 4])
def test_no_signal(flags: list[bool]):
    result = pass_k(flags, 2)
    assert not result.values.any()
    assert result.num_constant == 1


def test_k_out_of_range():
    with pytest.raises(ValueError, match=r"k must be in 1..N .* got 5"):
        pass_k([True] * 4, 5)


def test_config_makes_it():
    assert isinstance(make_method(load_config([], ["method.name=pass_k", "method.k=2"])), PassK)
    with pytest.raises(ConfigError, match="exceeds rollout.num_generations"):
        load_config([], ["method.name=pass_k", "method.k=13"])
    with pytest.raises(ConfigError, match="accuracy alone"):
        load_config([], ["method.name=pass_k", "reward.overlong.buffer_tokens=4"])
