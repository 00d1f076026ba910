"""Advantages of the responses to one prompt: GRPO, Dr.GRPO, RLOO, pass@k, MUPO (arXiv:2604.00479).

N = responses, K = groups. Everything is float64; the standard deviation is the sample one (ddof=1),
as in EasyR1 and the released MUPO code. An unscored response (None or NaN reward) stays out of all
statistics and gets advantage 0; its tokens must be masked from the loss as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import comb, sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Rewards = ArrayLike | Sequence[float | None]

# Added to the standard deviation (EasyR1, verl, the released MUPO code).
_EPS = 1e-6
# Rewards that differ by less than this share of their size are equal up to rounding: 0.1 + 0.2 and
# 0.3 must not become advantages. Real differences as small as 1e-5 keep their scale.
_SAME_REWARD = 1e-12
# A spread of pass@k below this means that all k-subsets fare alike.
_MIN_SPREAD = 1e-6


class SizeWeighting(StrEnum):
    """The two published ways to weight groups by size; they are not the same.

    With w_k = (N / (K |G_k|))**balance, and beside an ordinary mean over responses (1/N each):

    - `release` scales advantages by w_k under the ordinary mean, so a response counts w_k / N.
      With balance 1 all groups weigh 1/K in total; with 0 they weigh by size.
    - `paper` has the objective sum_k (w_k / |G_k|) sum_{i in G_k}, so a response counts
      w_k / |G_k|. That is N w_k / |G_k| times the ordinary 1/N, and that factor is what
      advantages are multiplied by. With balance 0 all groups weigh 1 in total; with balance 1
      small groups weigh more than large ones.

    Sizes (5, 3), balance 1: release 0.1 and 0.166667 a response, paper 0.16 and 0.444444. With one
    group both are plain GRPO.
    """

    PAPER = "paper"
    RELEASE = "release"


@dataclass(frozen=True, slots=True, kw_only=True)
class Advantages:
    """Advantages of one cohort and what happened while normalising."""

    values: Floats
    """[N]; 0 for unscored responses."""
    num_constant: int = 0
    """Groups with equal rewards, or one scored response alone: no signal, all zeros."""
    num_floored: int = 0
    """Groups with signal whose standard deviation was raised to `min_std`."""


def grpo(rewards: Rewards, *, min_std: float = 0.0) -> Advantages:
    """(R - mean) / (std + 1e-6) over the whole cohort.

    Args:
        rewards: [N], None or NaN where unscored.
        min_std: floor under the standard deviation; 0 turns it off.

    Returns:
        The advantages.

    Raises:
        ValueError: not a vector, a reward is infinite, or `min_std` is negative.
    """
    values = _checked(rewards)
    return _normalised(values, np.zeros(values.shape[0], np.int64), min_std)


def dr_grpo(rewards: Rewards) -> Advantages:
    """R - mean, without division (Dr.GRPO, arXiv:2503.20783).

    Args:
        rewards: [N], None or NaN where unscored.

    Returns:
        The advantages.

    Raises:
        ValueError: not a vector, or a reward is infinite.
    """
    values = _checked(rewards)
    centred, is_constant = _centred(values)
    return Advantages(values=np.nan_to_num(centred), num_constant=int(is_constant))


def rloo(rewards: Rewards) -> Advantages:
    """R minus the mean of the other rewards (leave-one-out, arXiv:2402.14740).

    Args:
        rewards: [N], None or NaN where unscored.

    Returns:
        The advantages.

    Raises:
        ValueError: not a vector, or a reward is infinite.
    """
    values = _checked(rewards)
    centred, is_constant = _centred(values)
    num_scored = int(np.isfinite(values).sum())
    scale = num_scored / max(num_scored - 1, 1)
    return Advantages(values=np.nan_to_num(centred) * scale, num_constant=int(is_constant))


def pass_k(is_right: ArrayLike, k: int) -> Advantages:
    """Advantages that raise pass@k instead of pass@1, in closed form over the N responses.

    Each k-subset of the cohort is rewarded if it holds a right response, rewards of subsets are
    z-scored (population standard deviation), and a response gets the mean over its subsets. With c
    right and n = N - c wrong responses, a subset fails with probability C(n, k) / C(N, k).

    Args:
        is_right: [N] truth.
        k: samples of which one should be right, 1 to N; 1 is GRPO's z-score.

    Returns:
        The advantages; all zeros where nothing is right or every k-subset holds a right response.

    Raises:
        ValueError: not a vector, or k is out of range.
    """
    right = np.asarray(is_right, bool)
    if right.ndim != 1 or not 1 <= k <= right.size:
        raise ValueError(f"k must be in 1..N of an [N] vector, got {k} and shape {right.shape}")
    total, wrong = right.size, int((~right).sum())
    failing = comb(wrong, k) / comb(total, k)
    spread = sqrt(failing * (1.0 - failing))
    if spread < _MIN_SPREAD:
        return Advantages(values=np.zeros(total), num_constant=1)
    others_fail = comb(wrong - 1, k - 1) / comb(total - 1, k - 1)
    return Advantages(values=np.where(right, failing, failing - others_fail) / spread)


def mupo(
    rewards: Rewards,
    group_ids: ArrayLike,
    *,
    balance: float = 1.0,
    weighting: SizeWeighting | str = SizeWeighting.RELEASE,
    min_std: float = 0.0,
) -> Advantages:
    """(R - mean) / (std + 1e-6) inside each group, times the group's size weight.

    Args:
        rewards: [N], None or NaN where unscored.
        group_ids: [N] integer group of each response; ids need not be consecutive.
        balance: exponent of the size weight.
        weighting: which published objective the weight stands for, see `SizeWeighting`.
        min_std: floor under the standard deviation; 0 turns it off. Without it a group of right
            answers only turns tiny differences in diversity into full-size advantages, however
            small the weight of diversity is.

    Returns:
        The weighted advantages, for a loss that weighs responses alike.

    Raises:
        ValueError: shapes differ, a reward is infinite, or `min_std` is negative.
    """
    values = _checked(rewards)
    ids = _checked_ids(group_ids, values.shape[0])
    plain = _normalised(values, ids, min_std)
    # Only scored responses count as members, as in the statistics.
    weights = np.zeros(values.shape[0])
    scored = np.isfinite(values)
    weights[scored] = size_weights(ids[scored], balance=balance, weighting=weighting)
    return Advantages(
        values=plain.values * weights,
        num_constant=plain.num_constant,
        num_floored=plain.num_floored,
    )


def size_weights(
    group_ids: ArrayLike,
    *,
    balance: float = 1.0,
    weighting: SizeWeighting | str = SizeWeighting.RELEASE,
) -> Floats:
    """What each response's advantage is multiplied by, see `SizeWeighting`.

    Args:
        group_ids: [N] integer group of each response.
        balance: exponent of the size weight.
        weighting: `paper` or `release`.

    Returns:
        [N] weights.
    """
    ids = np.asarray(group_ids)
    _, position, sizes = np.unique(ids, return_inverse=True, return_counts=True)
    size = sizes[position].astype(np.float64)
    num_rows, num_groups = ids.shape[0], sizes.shape[0]
    weights: Floats = (num_rows / (num_groups * size)) ** balance
    if SizeWeighting(weighting) is SizeWeighting.PAPER:
        weights = weights * (num_rows / size)
    return weights


def _normalised(values: Floats, ids: NDArray[np.int64], min_std: float) -> Advantages:
    if not min_std >= 0.0:
        raise ValueError(f"min_std must be 0 (off) or more, got {min_std}")
    result = np.zeros(values.shape[0])
    num_constant = num_floored = 0
    for group in np.unique(ids):
        members = np.flatnonzero(ids == group)
        centred, is_constant = _centred(values[members])
        if is_constant:
            num_constant += 1
            continue
        scored = np.isfinite(centred)
        std = float(np.sqrt((centred[scored] ** 2).sum() / (scored.sum() - 1)))
        num_floored += std < min_std
        result[members[scored]] = centred[scored] / (max(std, min_std) + _EPS)
    return Advantages(values=result, num_constant=num_constant, num_floored=num_floored)


def _centred(values: Floats) -> tuple[Floats, bool]:
    """[n] values minus their mean, NaN kept; and whether they carry no signal (then zeros)."""
    scored = values[np.isfinite(values)]
    if scored.size < 2 or np.ptp(scored) <= _SAME_REWARD * np.abs(scored).max():
        return np.where(np.isfinite(values), 0.0, np.nan), True
    return values - scored.mean(), False


def _checked(rewards: Rewards) -> Floats:
    values = np.asarray(rewards, np.float64)
    if values.ndim != 1 or values.size == 0:
        raise ValueError(f"rewards must be a non-empty [N] vector, got shape {values.shape}")
    if np.isinf(values).any():
        bad = np.flatnonzero(np.isinf(values)).tolist()
        raise ValueError(f"rewards must be finite, or NaN where unscored; infinite at {bad}")
    return values


def _checked_ids(group_ids: ArrayLike, num_rows: int) -> NDArray[np.int64]:
    ids = np.asarray(group_ids)
    if ids.shape != (num_rows,) or not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(
            f"group_ids must be {num_rows} integers, got shape {ids.shape} of {ids.dtype}"
        )
    return ids.astype(np.int64)
