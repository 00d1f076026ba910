"""Estimates of pass@k from n samples a problem, and their uncertainty."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mupo_ray.core.seeding import derive_seed


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


def pass_at_k_map(counts: Sequence[tuple[int, int]], ks: Iterable[int]) -> dict[int, float]:
    """Mean unbiased pass@k over problems, for several k.

    Args:
        counts: (num_samples, num_correct) of each problem.
        ks: values of k wanted.

    Returns:
        k -> mean over problems. A k that some problem has too few samples for is left out, and all
        are left out without problems.
    """
    fewest = min((n for n, _ in counts), default=0)
    return {
        k: float(np.mean([pass_at_k(n, c, k) for n, c in counts])) for k in ks if 1 <= k <= fewest
    }


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
    shares = np.empty(len(is_correct))
    for place, flags in enumerate(is_correct):
        row = np.asarray(flags, bool).reshape(-1)
        if not 1 <= k <= row.size:
            raise ValueError(f"problem {place} has {row.size} samples, need at least k = {k} >= 1")
        num_blocks = row.size // k
        shares[place] = row[: num_blocks * k].reshape(num_blocks, k).any(1).mean()
    return shares


def bootstrap_interval(
    values: ArrayLike, *, seed: int, level: float = 0.95, num_resamples: int = 2000
) -> tuple[float, float]:
    """Percentile bootstrap interval of a mean over problems.

    Args:
        values: [P] one number a problem, for instance its pass@k.
        seed: of the resampling.
        level: share of resampled means inside.
        num_resamples: how many.

    Returns:
        Lower and upper end.

    Raises:
        ValueError: no values, or `level` outside (0, 1).
    """
    sample = np.asarray(values, np.float64).reshape(-1)
    if sample.size == 0:
        raise ValueError("values must not be empty: a mean of no problems has no interval")
    if not 0.0 < level < 1.0:
        raise ValueError(f"level must be between 0 and 1, got {level}")
    rng = np.random.default_rng(derive_seed(seed, "bootstrap"))
    means = np.array(
        [sample[rng.integers(sample.size, size=sample.size)].mean() for _ in range(num_resamples)]
    )
    tail = (1.0 - level) / 2.0
    low, high = np.quantile(means, [tail, 1.0 - tail])
    return float(low), float(high)
