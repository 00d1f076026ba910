"""Intervals over problems: of a mean, of two runs' difference, of a rank correlation.

Shapes: P = problems, M = measures, B = resamples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, stdtrit
from scipy.stats import rankdata

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanInterval:
    """A mean (or correlation) and where it lies were other problems of the same kind drawn."""

    value: float
    low: float | None
    """None where there is no spread to tell: no part has two problems."""
    high: float | None


def score_interval(
    parts: Sequence[ArrayLike],
    *,
    bounds: tuple[float, float] = (0.0, 1.0),
    level: float = 0.95,
    weights: Sequence[ArrayLike] | None = None,
) -> MeanInterval:
    """Mean over parts of the mean over each part's problems, with a score interval.

    Wilson's score interval of a share, carried over to any bounded measure by an effective number
    of problems, mean (1 - mean) / variance (Korn and Graubard 1998, with Student's t in place of
    the normal quantile). The variance is the bootstrap's over problems, resampled within each part:
    for means it is known without resampling. It covers at its level where percentile, BCa and
    studentised bootstrap fail, in small sets and near the ends of the range; docs/evaluation.md has
    the rates.

    Where all problems show the same end of the range, the interval is that of a share in as many
    problems: nothing wrong in 96 problems does not mean that nothing ever will be.

    Args:
        parts: for each part (category, set) the values of its problems. One part: a plain mean.
        bounds: least and greatest value that a problem can have.
        level: share of intervals that hold the true mean.
        weights: of each value, not all 0 in a part; the part's mean is the ratio of the sums of
            weight * value and weight. None: all equal.

    Raises:
        ValueError: no parts, an empty one, weights that are all 0, a value that is outside the
            bounds or not finite, or `level` outside (0, 1).
    """
    if not 0.0 < level < 1.0:
        raise ValueError(f"level must be between 0 and 1, got {level}")
    if not parts:
        raise ValueError("parts must not be empty: a mean of no problems does not exist")
    means, variances, sizes = np.empty((3, len(parts)))
    for i, part in enumerate(parts):
        of_problem = np.ones(len(np.asarray(part))) if weights is None else weights[i]
        means[i], variances[i] = _moments(part, of_problem, bounds)
        sizes[i] = len(np.asarray(part))
    value = float(means.mean())
    is_single = sizes < 2
    if is_single.all():
        return MeanInterval(value=value, low=None, high=None)
    if len(parts) > 1:
        # The bootstrap's variance is (n - 1) / n of the unbiased one: much in a small category.
        variances *= sizes / np.maximum(sizes - 1.0, 1.0)
    # The spread of a part of one problem is unknown: taken to be that of the others.
    pooled = (variances * (sizes - 1.0)).sum() / (sizes - 1.0).sum()
    terms = np.where(is_single, pooled, variances) / sizes / len(parts) ** 2
    variance = float(terms.sum())
    freedom = float(sizes.sum()) - len(parts)
    if variance > 0.0:  # Welch and Satterthwaite.
        freedom = variance**2 / float((terms**2 / np.maximum(sizes - 1.0, 1.0)).sum())
    quantile = float(stdtrit(freedom, 0.5 + level / 2.0))
    low, high = _score_ends(value, variance, float(sizes.sum()), quantile, bounds)
    return MeanInterval(value=value, low=low, high=high)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedDifferences:
    """Means of differences over P problems. Every array has length M."""

    values: Floats
    lows: Floats
    highs: Floats
    p_values: Floats
    """Two-sided bootstrap p-value of no difference; at least 1 / (B + 1)."""


def paired_bootstrap(
    differences: ArrayLike, *, seed: int, level: float = 0.95, num_resamples: int = 4000
) -> PairedDifferences:
    """Bootstrap over problems of the mean difference between two runs.

    The expanded percentile interval (Hesterberg 2015, section 3.4.1): tails by Student's t, widened
    by sqrt(P / (P - 1)), without which percentiles are too narrow in small sets.

    Args:
        differences: [M, P] run B minus run A, of each measure and problem; P >= 2.
        seed: of the resampling; the same resamples serve all measures.
        level: of the interval.
        num_resamples: B.

    Raises:
        ValueError: not a finite [M, P] matrix with P >= 2, or `level` outside (0, 1).
    """
    rows = np.asarray(differences, np.float64)
    if rows.ndim != 2 or rows.shape[1] < 2 or not np.isfinite(rows).all():
        raise ValueError(
            f"differences must be a finite [M, P] matrix with P >= 2, got shape {rows.shape}"
        )
    if not 0.0 < level < 1.0:
        raise ValueError(f"level must be between 0 and 1, got {level}")
    size = rows.shape[1]
    counts = resample_counts(size, seed=seed, num_resamples=num_resamples)
    means = counts @ rows.T / size
    stretch = math.sqrt(size / (size - 1)) * float(stdtrit(size - 1, 0.5 + level / 2.0))
    lows, highs = np.quantile(means, [ndtr(-stretch), ndtr(stretch)], axis=0)
    below, above = (means <= 0.0).sum(0), (means >= 0.0).sum(0)
    p_values = np.minimum(1.0, 2.0 * (np.minimum(below, above) + 1.0) / (num_resamples + 1.0))
    return PairedDifferences(values=rows.mean(1), lows=lows, highs=highs, p_values=p_values)


def spearman_interval(
    left: ArrayLike,
    right: ArrayLike,
    *,
    seed: int,
    level: float = 0.95,
    num_resamples: int = 2000,
) -> MeanInterval | None:
    """Rank correlation over problems, with the percentile bootstrap's interval.

    Args:
        left: [P].
        right: [P].
        seed: of the resampling.
        level: of the interval.
        num_resamples: B; those in which one side is constant have no correlation and are skipped.

    Returns:
        None where there are fewer than four problems or a side is constant.

    Raises:
        ValueError: shapes differ, or a value is not finite.
    """
    pair = np.stack([np.asarray(left, np.float64), np.asarray(right, np.float64)])
    if pair.ndim != 2 or not np.isfinite(pair).all():
        raise ValueError(f"both sides must be finite vectors, got shape {pair.shape}")
    size = pair.shape[1]
    if size < 4 or (np.ptp(pair, axis=1) == 0.0).any():
        return None
    places = np.random.default_rng(seed).integers(size, size=(num_resamples, size))
    drawn = [_rank_correlation(pair[0, some], pair[1, some]) for some in np.array_split(places, 20)]
    resampled = np.concatenate(drawn)
    tail = (1.0 - level) / 2.0
    low, high = np.nanquantile(resampled, [tail, 1.0 - tail])
    value = float(_rank_correlation(pair[:1], pair[1:])[0])
    return MeanInterval(value=value, low=float(low), high=float(high))


def _rank_correlation(left: Floats, right: Floats) -> Floats:
    """Spearman's correlation of each row of two [B, P] matrices; NaN where one is constant."""
    ranks = [rankdata(side, axis=1) for side in (left, right)]
    centred = [side - side.mean(1, keepdims=True) for side in ranks]
    scale = np.sqrt((centred[0] ** 2).sum(1) * (centred[1] ** 2).sum(1))
    product = (centred[0] * centred[1]).sum(1)
    out: Floats = np.full(len(scale), np.nan)
    np.divide(product, scale, out=out, where=scale > 0.0)
    return out


def resample_counts(size: int, *, seed: int, num_resamples: int) -> Floats:
    """[B, size] how often each resample of `size` problems holds each of them."""
    rng = np.random.default_rng(seed)
    shares = np.full(size, 1.0 / size)
    return rng.multinomial(size, shares, size=num_resamples).astype(np.float64)


def _moments(
    values: ArrayLike, weights: ArrayLike, bounds: tuple[float, float]
) -> tuple[float, float]:
    """Weighted mean, and the variance of what a problem contributes to it."""
    numbers, shares = np.asarray(values, np.float64), np.asarray(weights, np.float64)
    if numbers.ndim != 1 or numbers.size == 0 or numbers.shape != shares.shape:
        raise ValueError(
            f"a part must be a vector of at least one value with as many weights, got shapes "
            f"{numbers.shape} and {shares.shape}"
        )
    slack = 1e-9 * (bounds[1] - bounds[0])
    is_inside = (numbers >= bounds[0] - slack) & (numbers <= bounds[1] + slack)
    if not is_inside.all():
        raise ValueError(f"values must be in {bounds}, got {numbers[~is_inside][0]}")
    if not shares.sum() > 0.0:
        raise ValueError("weights must not all be 0 in a part")
    mean = float(numbers.mean() if np.ptp(shares) == 0.0 else shares @ numbers / shares.sum())
    parts = shares * (numbers - mean) / shares.mean()
    return mean, float((parts**2).mean())


def _score_ends(
    value: float, variance: float, size: float, quantile: float, bounds: tuple[float, float]
) -> tuple[float, float]:
    start, width = bounds[0], bounds[1] - bounds[0]
    share = min(max((value - start) / width, 0.0), 1.0)
    spread = share * (1.0 - share)
    scaled = variance / width**2
    if scaled <= 0.0:
        if spread > 0.0:
            return value, value
        effective = size
    else:
        effective = max(spread / scaled, 1.0)
    shrink = 1.0 + quantile**2 / effective
    centre = (share + quantile**2 / (2.0 * effective)) / shrink
    half = quantile / shrink * math.sqrt(spread / effective + quantile**2 / (4.0 * effective**2))
    low, high = max(centre - half, 0.0), min(centre + half, 1.0)
    # Rounding must not leave the value outside its own interval.
    return start + width * min(low, share), start + width * max(high, share)
