"""Advantages against numbers worked out by hand or published."""

from __future__ import annotations

import numpy as np
import pytest

from mupo_ray.core.advantage import dr_grpo, grpo, mupo, rloo, size_weights

BASELINE = [1, 0, 0, 1, 1, 0, 0.1, 1]
GROUPS = [0, 0, 0, 0, 1, 1, 1, 0]


def close(actual, expected, atol=6e-7):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=atol)


def test_grpo_golden():
    close(
        grpo(BASELINE).values,
        [0.933573, -0.981449, -0.981449, 0.933573, 0.933573, -0.981449, -0.789946, 0.933573],
    )
    close(grpo([1, 0, 0, 0, 0, 0, 0, 0]).values, [2.474867, *[-0.353552] * 7])
    close(grpo([0, 0, 1, 1, 1]).values, [-1.095443] * 2 + [0.730295] * 3, atol=3e-6)


def test_dr_grpo_golden():
    close(
        dr_grpo(BASELINE).values,
        [0.4875, -0.5125, -0.5125, 0.4875, 0.4875, -0.5125, -0.4125, 0.4875],
    )


def test_rloo_golden():
    close(
        rloo(BASELINE).values,
        [0.557143, -0.585714, -0.585714, 0.557143, 0.557143, -0.585714, -0.471429, 0.557143],
    )


def test_mupo_accuracy_only_golden():
    acc = [1, 0, 1, 1, 1, 0, 0, 0]
    plain = [0.730295, -1.095443, 0.730295, 0.730295, 1.154699, -0.577349, -0.577349, -1.095443]
    weighted = [0.584236, -0.876354, 0.584236, 0.584236, 1.539598, -0.769799, -0.769799, -0.876354]
    close(mupo(acc, GROUPS, balance=0).values, plain)
    close(mupo(acc, GROUPS).values, weighted)


def test_size_weights_of_sizes_5_and_3():
    # Per response: release counts w_k / N, the paper's objective w_k / |G_k|.
    ids = [0] * 5 + [1] * 3
    close(size_weights(ids)[[0, 7]], [0.8, 1.333333])
    close(size_weights(ids)[[0, 7]] / 8, [0.1, 0.166667])
    close(size_weights(ids, weighting="paper")[[0, 7]] / 8, [0.16, 0.444444])
    close(size_weights(ids, weighting="paper", balance=0)[[0, 7]] / 8, [0.2, 0.333333])


def test_paper_weighting_is_the_papers_objective():
    # sum_k (w_k / |G_k|) sum_i A_i x_i against the mean over responses of the weighted advantage.
    rng = np.random.default_rng(3)
    ids = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2, 0, 1])
    rewards, term = rng.standard_normal(11), rng.standard_normal(11)
    plain = mupo(rewards, ids, balance=0).values
    objective = 0.0
    for k in range(3):
        members = ids == k
        w = (11 / (3 * members.sum())) ** 1.7
        objective += w / members.sum() * (plain[members] * term[members]).sum()
    ours = mupo(rewards, ids, balance=1.7, weighting="paper").values
    assert np.mean(ours * term) == pytest.approx(objective, rel=1e-12)


def test_all_correct_group_turns_tiny_distances_into_full_advantages_unless_floored():
    div = np.array([0.959536, 0.787637, 0.873104, 0.703787])
    big = 0.4 * div
    tiny = 0.001 * div
    close(grpo(big).values, [1.16741, -0.39403, 0.382303, -1.155683], atol=1e-5)
    close(grpo(tiny).values, [1.156927, -0.390492, 0.378871, -1.145306], atol=1e-5)
    floored = grpo(tiny, min_std=0.1)
    assert np.abs(floored.values).max() < 0.01
    assert (floored.num_floored, floored.num_constant) == (1, 0)
    assert grpo(big, min_std=0.01).num_floored == 0


def test_group_of_one_and_constant_group_are_zero_and_counted():
    result = mupo([1.0, 0.0, 1.0, 0.35, 0.35, 0.35], [0, 0, 1, 2, 2, 2], balance=0)
    assert result.values[2:].tolist() == [0.0] * 4
    assert result.num_constant == 2
    close(result.values[:2], [0.707106, -0.707106], atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rewards", [[0.1] * 3, [0.35] * 8, [0.1 + 0.2, 0.3]])
def test_c01_equal_rewards_are_exactly_zero(rewards, dtype):
    values = np.array(rewards, dtype)
    for result in (grpo(values), dr_grpo(values), rloo(values), mupo(values, [0] * len(values))):
        assert result.values.tolist() == [0.0] * len(rewards)
        assert result.num_constant == 1


def test_c02_sample_standard_deviation_everywhere():
    expected = [1.5, -0.5, -0.5, -0.5]
    close(grpo([1.0, 0, 0, 0]).values, expected, atol=4e-6)
    close(mupo([1.0, 0, 0, 0], [7, 7, 7, 7]).values, expected, atol=4e-6)
    close(mupo([1.0, 0, 0, 0], [7, 7, 7, 7], weighting="paper").values, expected, atol=4e-6)


def test_c16_low_variance_group_keeps_its_scale():
    np.testing.assert_allclose(grpo([1.0, 1.00001]).values, [-0.6194967, 0.6194967], rtol=1e-3)


def test_c18_unscored_response_is_left_out():
    close(grpo([1.0, 0.0, None, 1.0]).values, [0.5773493, -1.154699, 0.0, 0.5773493])
    close(dr_grpo([1.0, 0.0, None, 1.0]).values, [1 / 3, -2 / 3, 0, 1 / 3])
    close(rloo([1.0, 0.0, None, 1.0]).values, [0.5, -1.0, 0, 0.5])
    with_gap = mupo([1, 0, np.nan, 1, 0, 1], [0, 0, 0, 0, 1, 1], weighting="paper").values
    without = mupo([1, 0, 1, 0, 1], [0, 0, 0, 1, 1], weighting="paper").values
    assert with_gap[2] == 0.0
    close(np.delete(with_gap, 2), without, atol=1e-12)


def test_wrong_input_is_named():
    with pytest.raises(ValueError, match="infinite at \\[1\\]"):
        grpo([1.0, np.inf])
    with pytest.raises(ValueError, match="group_ids must be 2 integers"):
        mupo([1.0, 0.0], [0, 0, 1])
    with pytest.raises(ValueError, match="min_std"):
        grpo([1.0, 0.0], min_std=-1)
    with pytest.raises(ValueError, match="sideways"):
        mupo([1.0, 0.0], [0, 0], weighting="sideways")
