"""Intervals: by hand where there is a formula, by how often they cover where there is none."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from mupo_ray.core.intervals import paired_bootstrap, score_interval
from mupo_ray.core.passk import pass_at_k

LEVEL = 0.95


def test_a_share_gets_wilsons_interval():
    found = score_interval([[1.0] * 7 + [0.0] * 3])
    t = stats.t.ppf(0.975, 9)
    centre = (0.7 + t**2 / 20) / (1 + t**2 / 10)
    half = t / (1 + t**2 / 10) * np.sqrt(0.21 / 10 + t**2 / 400)
    assert (found.value, found.low, found.high) == pytest.approx(
        (0.7, centre - half, centre + half)
    )


def test_all_right_is_not_certain():
    # Wilson at 96 of 96: 96 / (96 + t^2), about 1 - 4 / 96.
    t = stats.t.ppf(0.975, 95)
    found = score_interval([[1.0] * 96])
    assert (found.value, found.low, found.high) == pytest.approx((1.0, 96 / (96 + t**2), 1.0))
    nothing = score_interval([[0.0] * 96])
    assert (nothing.value, nothing.low, nothing.high) == pytest.approx((0.0, 0.0, 1 - found.low))


def test_many_problems_give_the_normal_interval():
    values = np.random.default_rng(0).beta(2, 3, 4000)
    found = score_interval([values])
    half = 1.96 * values.std() / np.sqrt(4000)
    assert (found.low, found.high) == pytest.approx(
        (values.mean() - half, values.mean() + half), abs=1e-4
    )


def test_bounds_only_rescale():
    values = np.random.default_rng(0).beta(2, 3, 40)
    plain, scaled = score_interval([values]), score_interval([3 + 7 * values], bounds=(3, 10))
    assert (scaled.value, scaled.low, scaled.high) == pytest.approx(
        (3 + 7 * plain.value, 3 + 7 * plain.low, 3 + 7 * plain.high)
    )


def test_parts_count_the_same_whatever_their_size():
    assert score_interval([[1.0] * 30, [0.0] * 3]).value == 0.5
    # Two parts with the same spread and size: the variance is that of one with both, each centred.
    part = np.linspace(0.2, 0.4, 20)
    both = score_interval([part, part + 0.4])
    alone = score_interval([np.concatenate([part, part]) + 0.2])
    assert (both.value, both.low, both.high) == pytest.approx(
        (0.5, alone.low, alone.high), abs=1e-3
    )


def test_a_part_of_one_problem_takes_the_spread_of_the_others():
    part = np.linspace(0.2, 0.4, 20)
    single = score_interval([part, [0.3]])
    assert single.low < 0.3 - 0.03 and single.high > 0.3 + 0.03
    lone = score_interval([[0.3]])
    assert (lone.value, lone.low, lone.high) == (0.3, None, None)
    assert score_interval([[0.3], [0.5]]).low is None


def test_weights_make_a_ratio():
    # 3 of 4 and 1 of 6 are 4 of 10, not the mean of the two shares.
    found = score_interval([[3 / 4, 1 / 6]], weights=[[4, 6]])
    assert found.value == pytest.approx(0.4)
    doubled = score_interval([[0.5, 0.25, 0.5]], weights=[[2, 2, 2]])
    plain = score_interval([[0.5, 0.25, 0.5]])
    assert (doubled.low, doubled.high) == pytest.approx((plain.low, plain.high))


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="parts must not be empty"):
        score_interval([])
    with pytest.raises(ValueError, match="at least one value"):
        score_interval([[0.5], []])
    with pytest.raises(ValueError, match=r"in \(0.0, 1.0\), got 1.5"):
        score_interval([[0.5, 1.5]])
    with pytest.raises(ValueError, match="got nan"):
        score_interval([[0.5, np.nan]])
    with pytest.raises(ValueError, match="weights"):
        score_interval([[0.5, 0.2]], weights=[[0, 0]])
    with pytest.raises(ValueError, match="level"):
        score_interval([[0.5, 0.2]], level=95)
    with pytest.raises(ValueError, match="P >= 2"):
        paired_bootstrap([[0.1]], seed=0)


# [c] pass@k of 16 samples.
PASS = {k: np.array([pass_at_k(16, c, k) for c in range(17)]) for k in (1, 4, 16)}


@pytest.mark.parametrize("size", [30, 96])
@pytest.mark.parametrize("k", [1, 4, 16])
@pytest.mark.parametrize("shape", [(0.5, 0.5), (1, 2)], ids=["two-sided", "hard"])
def test_intervals_cover_at_their_level(size, k, shape):
    rng = np.random.default_rng(7)
    true = rng.beta(*shape, 400_000)
    truth = np.mean(1 - (1 - true) ** k)
    num_sets = 1500
    right = rng.binomial(16, rng.beta(*shape, (num_sets, size)))
    found = [score_interval([PASS[k][row]]) for row in right]
    share = np.mean([i.low <= truth <= i.high for i in found])
    # 2 %, and two standard errors of the simulation.
    assert share == pytest.approx(LEVEL, abs=0.02 + 2 * np.sqrt(0.05 * 0.95 / num_sets))


def test_means_of_categories_cover_at_their_level():
    rng = np.random.default_rng(9)
    # Mean pass@1 of Beta(a, b) is a / (a + b).
    shapes = {10: (0.5, 0.5), 12: (1, 2), 14: (2, 1), 60: (1, 1)}
    truth = np.mean([a / (a + b) for a, b in shapes.values()])
    num_sets = 1500
    hits = 0
    for _ in range(num_sets):
        parts = [rng.binomial(16, rng.beta(*ab, size)) / 16 for size, ab in shapes.items()]
        found = score_interval(parts)
        hits += found.low <= truth <= found.high
    assert hits / num_sets == pytest.approx(LEVEL, abs=0.02 + 2 * np.sqrt(0.05 * 0.95 / num_sets))


def test_paired_intervals_cover_at_their_level():
    """Two runs on the same problems: abilities go together, samples do not."""
    rng = np.random.default_rng(8)
    size, num_sets = 60, 400
    # Of ability + 0.1 what lies above 1 is cut: the integral of (a - 0.9) 2 (1 - a) over 0.9 to 1.
    truth = 0.1 - 0.1**3 / 3
    hits = 0
    for seed in range(num_sets):
        ability = rng.beta(1, 2, size)
        better = np.clip(ability + 0.1, 0, 1)
        gap = (rng.binomial(16, better) - rng.binomial(16, ability)) / 16
        found = paired_bootstrap([gap], seed=seed, num_resamples=1000)
        hits += bool(found.lows[0] <= truth <= found.highs[0])
    assert hits / num_sets == pytest.approx(LEVEL, abs=0.02 + 2 * np.sqrt(0.05 * 0.95 / num_sets))


def test_paired_bootstrap_of_known_differences():
    rng = np.random.default_rng(0)
    gaps = rng.normal(0.0, 1.0, 400)
    gaps -= gaps.mean()
    found = paired_bootstrap([gaps, gaps + 1.0, np.zeros(400)], seed=1)
    assert found.values == pytest.approx([0.0, 1.0, 0.0], abs=1e-12)
    half = 1.966 * gaps.std(ddof=1) / 20
    assert found.highs - found.values == pytest.approx([half, half, 0.0], rel=0.06)
    assert found.values - found.lows == pytest.approx([half, half, 0.0], rel=0.06)
    assert found.p_values[0] > 0.9 and found.p_values[1] < 0.001 and found.p_values[2] == 1.0
    again = paired_bootstrap([gaps, gaps + 1.0, np.zeros(400)], seed=1)
    assert (again.lows == found.lows).all()
