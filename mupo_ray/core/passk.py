"""Estimates of pass@k from n samples a problem."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Unbiased chance that at least one of k samples is right (Chen et al. 2021, section 2.1).

    Args:
        num_samples: n samples of one problem.
        num_correct: c right ones.
        k: samples drawn without replacement, at most n.

    Returns:
        1 - C(n - c, k) / C(n, k).

    Raises:
        ValueError: k > n (no unbiased estimate exists), or a count is out of range.
    """
    if not 0 <= num_correct <= num_samples:
        raise ValueError(f"num_correct must be in 0..{num_samples}, got {num_correct}")
    if not 1 <= k <= num_samples:
        raise ValueError(f"k must be in 1..{num_samples} (the samples there are), got {k}")
    if num_samples - num_correct < k:
        return 1.0
    # The product form stays in range where the binomials would overflow.
    drawn = np.arange(num_samples - num_correct + 1, num_samples + 1)
    return float(1.0 - np.prod(1.0 - k / drawn))


def pass_at_k_table(counts: Sequence[tuple[int, int]], ks: Sequence[int]) -> NDArray[np.float64]:
    """Unbiased pass@k of each problem for several k.

    Args:
        counts: (num_samples, num_correct) of each of P problems.
        ks: [K] values of k, each at most the fewest samples of a problem.

    Returns:
        [K, P].

    Raises:
        ValueError: as `pass_at_k`.
    """
    columns = {pair: [pass_at_k(*pair, k) for k in ks] for pair in set(counts)}
    table = np.array([columns[pair] for pair in counts], np.float64).reshape(len(counts), len(ks))
    return np.ascontiguousarray(table.T)


def any_of_k(is_correct: Sequence[ArrayLike], k: int) -> NDArray[np.float64]:
    """Share of blocks of exactly k samples with a right one: the paper's acc@k at k samples.

    Args:
        is_correct: for each of P problems the [n] truth of its samples, in sampling order.
        k: size of a block. Blocks are disjoint; samples that fill none are not used.

    Returns:
        [P] share of each problem; their mean is the metric.

    Raises:
        ValueError: a problem has fewer than k samples, or k < 1.
    """
    rows = [np.asarray(flags, bool).reshape(-1) for flags in is_correct]
    sizes = np.array([row.size for row in rows], np.int64)
    for place in np.flatnonzero((sizes < k) | (k < 1)):
        raise ValueError(f"problem {place} has {sizes[place]} samples, need at least k = {k} >= 1")
    num_blocks = sizes // k
    most = int(num_blocks.max(initial=0))
    # Problems may have different numbers of samples: wrong ones fill up, in no block that counts.
    flags = np.zeros((len(rows), most * k), bool)
    for place, row in enumerate(rows):
        flags[place, : num_blocks[place] * k] = row[: num_blocks[place] * k]
    hits: NDArray[np.int64] = flags.reshape(len(rows), most, k).any(2).sum(1)
    return hits / num_blocks
