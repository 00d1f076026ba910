"""What choosing one of k samples gives, by vote or by score: exact means over all subsets.

Shapes: n = samples of a problem, K = values of k.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import comb

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def majority_at_k(
    num_samples: int, num_correct: int, wrong_counts: Sequence[int], ks: Sequence[int]
) -> Floats:
    """Chance that the most frequent answer of k samples is the right one.

    The mean over all C(n, k) subsets of the samples, hence unbiased as pass@k is (self-consistency,
    Wang et al. 2023, with the subsets enumerated). All right samples give one answer. A tie is
    drawn among the answers that tie. A sample without an answer votes for nothing; a subset in
    which nobody votes is wrong.

    Args:
        num_samples: n samples, those without an answer too.
        num_correct: right ones.
        wrong_counts: how often each wrong answer was given.
        ks: [K] values of k, each in 1..n.

    Returns:
        [K].

    Raises:
        ValueError: counts are negative or sum to more than n, or a k is out of range.
    """
    if min((num_correct, *wrong_counts)) < 0 or num_correct + sum(wrong_counts) > num_samples:
        raise ValueError(
            f"counts of answers must be 0 or more and sum to at most {num_samples}, got "
            f"{num_correct} right and {list(wrong_counts)} wrong"
        )
    if any(not 1 <= k <= num_samples for k in ks):
        raise ValueError(f"k must be in 1..{num_samples} (the samples there are), got {list(ks)}")
    votes = tuple(sorted(count for count in wrong_counts if count))
    chances = _majority_chances(num_samples, num_correct, votes)
    return chances[np.asarray(ks, np.int64)]


def best_of_k(is_correct: ArrayLike, scores: ArrayLike, ks: Sequence[int]) -> Floats:
    """Chance that the best-scored of k samples is right.

    The mean over all C(n, k) subsets: with the samples in order of their scores, C(r, k) of them
    lie within the r lowest. A tie for the best is drawn among those that tie.

    Args:
        is_correct: [n] truth of the samples.
        scores: [n] higher is better; finite.
        ks: [K] values of k, each in 1..n.

    Returns:
        [K].

    Raises:
        ValueError: shapes differ, a score is not finite, or a k is out of range.
    """
    flags, ranking = np.asarray(is_correct, np.float64), np.asarray(scores, np.float64)
    if flags.ndim != 1 or flags.shape != ranking.shape:
        raise ValueError(f"is_correct and scores must be [n], got {flags.shape}, {ranking.shape}")
    if not np.isfinite(ranking).all():
        raise ValueError(f"scores must be finite, got {ranking[~np.isfinite(ranking)][0]}")
    size = flags.size
    if any(not 1 <= k <= size for k in ks):
        raise ValueError(f"k must be in 1..{size} (the samples there are), got {list(ks)}")
    _, place, counts = np.unique(ranking, return_inverse=True, return_counts=True)
    accuracy = np.bincount(place, weights=flags) / counts
    ends = np.cumsum(counts)
    within = _within_lowest(size)[np.asarray(ks, np.int64)]
    chances: Floats = (within[:, ends] - within[:, ends - counts]) @ accuracy
    return chances


@lru_cache(maxsize=64)
def _within_lowest(size: int) -> Floats:
    """[size + 1, size + 1] share of the subsets of k that lie within the r lowest, at [k, r]."""
    table = np.zeros((size + 1, size + 1))
    for k in range(size + 1):
        for r in range(k, size + 1):
            table[k, r] = comb(r, k) / comb(size, k)
    return table


@lru_cache(maxsize=65536)
def _majority_chances(size: int, num_correct: int, votes: tuple[int, ...]) -> Floats:
    """[size + 1] chance for each k, 0 unused.

    Counts subsets by generating functions: the power of x is the samples drawn. The right answer
    is drawn t times in C(c, t) ways; each other answer less than t times, or t times with the
    mark y, which makes the number of ties the power of y. A winner drawn among u + 1 that tie is
    right with chance 1 / (u + 1), the integral of y^u over [0, 1], which Gauss-Legendre nodes give
    exactly.
    """
    if num_correct == 0:
        return np.zeros(size + 1)
    nodes, node_weights = np.polynomial.legendre.leggauss(len(votes) // 2 + 1)
    ties, tie_weights = (nodes + 1.0) / 2.0, node_weights / 2.0
    times = np.arange(1, num_correct + 1)
    num_mute = size - num_correct - sum(votes)
    # [t, y, power of x]
    ways = np.zeros((times.size, ties.size, size + 1))
    ways[:, :, : num_mute + 1] = [comb(num_mute, i) for i in range(num_mute + 1)]
    for count in votes:
        factor = np.where(
            times[:, None, None] > np.arange(count + 1),
            1.0,
            np.where(times[:, None, None] == np.arange(count + 1), ties[:, None], 0.0),
        ) * [float(comb(count, i)) for i in range(count + 1)]
        product = factor[:, :, :1] * ways
        for drawn in range(1, count + 1):
            product[:, :, drawn:] += factor[:, :, drawn : drawn + 1] * ways[:, :, :-drawn]
        ways = product
    rest = np.einsum("y,tyx->tx", tie_weights, ways)
    won = np.zeros(size + 1)
    for t in range(1, num_correct + 1):
        won[t:] += comb(num_correct, t) * rest[t - 1, : size + 1 - t]
    chances = won / [float(comb(size, k)) for k in range(size + 1)]
    return np.clip(chances, 0.0, 1.0)
