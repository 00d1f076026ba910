"""MUPO's worked example from angles to advantages, annealings, DAPO's penalty, diversity."""

from __future__ import annotations

import numpy as np
import pytest

from mupo_ray.core.advantage import grpo, mupo
from mupo_ray.core.diversity import (
    distance_to_other_groups,
    effective_strategies_of_embeddings,
    effective_strategies_of_labels,
    pairwise_diversity,
)
from mupo_ray.core.grouping import inertia, partition
from mupo_ray.core.reward import (
    cosine_weight,
    exponential_weight,
    overlong_penalty,
    paper_reward_parts,
    release_reward_parts,
)

ANGLES = np.deg2rad([0, 10, 5, -8, 80, 95, 88, 15])
UNIT = np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1)
ACC = [1, 0, 1, 1, 1, 0, 0, 0]
FMT = [1, 1, 1, 0, 1, 1, 0, 1]
GROUPS = [0, 0, 0, 0, 1, 1, 1, 0]
R_DIV = [0.959536, 0.787637, 0.873104, 1.098193, 0.753599, 1.010261, 0.889495, 0.703787]


def close(actual, expected, atol=6e-7):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=atol)


def test_partition_golden():
    ids = partition(UNIT, 2, 3)
    assert ids.tolist() == GROUPS
    close(inertia(UNIT, ids), 0.130043)


def test_distance_to_other_groups_golden():
    close(distance_to_other_groups(UNIT, GROUPS), R_DIV)
    close(distance_to_other_groups(5.0 * UNIT, GROUPS), R_DIV)
    assert distance_to_other_groups(UNIT, [3] * 8).tolist() == [0.0] * 8


def test_paper_reward_golden():
    div = distance_to_other_groups(UNIT, GROUPS)
    reward = sum(paper_reward_parts(ACC, FMT, div, diversity_weight=0.4).values())
    close(reward, [2.383814, 1, 2.349242, 1.439277, 2.30144, 1, 0, 1])
    close(
        mupo(reward, GROUPS).values,
        [0.86626, -0.733455, 0.826293, -0.225642, 1.387583, -0.116094, -1.271489, -0.733455],
    )
    close(
        mupo(reward, GROUPS, balance=0).values,
        [1.082825, -0.916819, 1.032866, -0.282053, 1.040687, -0.08707, -0.953617, -0.916819],
    )


def test_release_reward_golden():
    div = distance_to_other_groups(UNIT, GROUPS)
    parts = release_reward_parts(ACC, FMT, div, diversity_weight=0.4)
    reward = sum(parts.values())
    close(reward, [1.367629, 0.1, 1.298483, 1.378555, 1.202879, 0.1, 0, 0.1])
    close(
        mupo(reward, GROUPS).values,
        [0.606334, -0.875472, 0.525505, 0.619106, 1.535273, -0.66776, -0.867513, -0.875472],
    )
    close(
        grpo(reward).values,
        [1.015237, -0.893649, 0.911112, 1.031689, 0.767145, -0.893649, -1.044236, -0.893649],
    )
    wrong = np.array(ACC) == 0
    assert (parts["diversity"][wrong] == 0).all()


@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        (0.4, [1.16741, -0.39403, 0.382303, -1.155683]),
        (0.1, [1.16733, -0.394003, 0.382277, -1.155604]),
        (0.001, [1.156927, -0.390492, 0.378871, -1.145306]),
    ],
)
def test_all_correct_group_cancels_the_diversity_weight_golden(weight, expected):
    div = distance_to_other_groups(UNIT, GROUPS)[[0, 1, 2, 7]]
    parts = paper_reward_parts([1] * 4, [1] * 4, div, diversity_weight=weight)
    close(grpo(sum(parts.values())).values, expected)


def test_release_reward_without_groups_has_no_diversity_weight():
    parts = release_reward_parts([1, 1, 0], [1, 0, 1], None, diversity_weight=0.4)
    close(sum(parts.values()), [1.0, 0.9, 0.1], atol=1e-12)
    with pytest.raises(ValueError, match="exceeds 1"):
        release_reward_parts([1], [1], [1.0], diversity_weight=0.95)
    with pytest.raises(ValueError, match="alike"):
        paper_reward_parts([1, 0], [1], [1.0], diversity_weight=0.1)


def test_cosine_weight_golden():
    weights = [cosine_weight(t, 100, high=0.4, low=0.1) for t in (0, 25, 50, 75, 100, 150)]
    close(weights, [0.4, 0.356066, 0.25, 0.143934, 0.1, 0.1])


def test_exponential_weight_golden():
    weights = [exponential_weight(t, initial=0.4, decay=9e-3) for t in (1, 10, 50, 100, 200)]
    close(weights, [0.396416, 0.365572, 0.255051, 0.162628, 0.06612])
    close(
        [exponential_weight(t, initial=0.2, decay=7.5e-3) for t in (1, 100)], [0.198506, 0.094473]
    )


def test_overlong_penalty_golden():
    penalty = overlong_penalty(
        [100, 16384, 17000, 18432, 20480, 30000], max_tokens=20480, buffer_tokens=4096
    )
    close(penalty, [0.0, 0.0, -0.150391, -0.5, -1.0, -1.0])
    halved = overlong_penalty([18432], max_tokens=20480, buffer_tokens=4096, factor=0.5)
    close(halved, [-0.25])
    with pytest.raises(ValueError, match="buffer_tokens"):
        overlong_penalty([1], max_tokens=10, buffer_tokens=11)


def test_pairwise_diversity_golden():
    close(pairwise_diversity(UNIT), 0.484204)
    assert pairwise_diversity(np.ones((4, 3))) == pytest.approx(0.0, abs=1e-12)
    assert pairwise_diversity([[1.0, 0.0]]) == 0.0
    assert pairwise_diversity([[1.0, 0.0], [-2.0, 0.0]]) == pytest.approx(2.0)


def test_effective_strategies_by_hand():
    # Two orthogonal pairs are two strategies; three of one and one other have entropy .562335.
    pairs = [[1.0, 0], [1, 0], [0, 1], [0, 1]]
    assert effective_strategies_of_embeddings(pairs) == pytest.approx(2.0)
    assert effective_strategies_of_embeddings(np.ones((5, 4))) == pytest.approx(1.0)
    assert effective_strategies_of_embeddings(np.eye(6)) == pytest.approx(6.0)
    skewed = [[1.0, 0], [1, 0], [1, 0], [0, 1]]
    assert effective_strategies_of_embeddings(skewed) == pytest.approx(np.exp(0.5623351446))
    assert effective_strategies_of_labels(["a", "a", "a", "b"]) == pytest.approx(1.7547653)
    assert effective_strategies_of_labels([1, 2, 3]) == pytest.approx(3.0)
    assert effective_strategies_of_labels([]) == 0.0


def test_row_of_zeros_has_no_direction():
    rows = [[1.0, 0.0], [0.0, 0.0], [0.0, 2.0], [0.0, 1.0]]
    close(distance_to_other_groups(rows, [0, 0, 1, 1]), [1.0, 0.0, 1.0, 1.0])
    close(distance_to_other_groups(rows, [0, 1, 1, 1]), [1.0, 0.0, 1.0, 1.0])
    assert pairwise_diversity(rows) == pytest.approx(2 / 3)


def test_not_finite_embeddings_are_named():
    with pytest.raises(ValueError, match="rows \\[1\\]"):
        pairwise_diversity([[1.0], [np.nan]])
