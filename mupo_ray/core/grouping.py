"""Partition of a cohort into reasoning groups: constrained k-means (MUPO, arXiv:2604.00479, 4.2).

Minimise the inertia (sum of squared distances to the mean of the own group) over all partitions
into K groups of at least `min_group_size` rows. N = responses to one prompt, K = groups, D =
embedding width. D enters once, in the Gram matrix; all the search works on [N, N].

Up to `MAX_EXACT_ROWS` rows the result is the true optimum (`partition_exact.py`): always with two
or three groups, and with more unless a fixed budget of work runs out. Otherwise it is the best of
many local searches (`partition_search.py`).

The order of the rows does not matter. Rows are first sorted by content, so the search sees the same
matrix however they came, and groups are numbered by falling size, then by that order. When two
partitions are equally good, the sorted order decides. Rows equal in every bit cannot be told apart
by content: where the sizes force such duplicates into different groups, those given earlier come
first, and any choice has the same inertia.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mupo_ray.core.partition_exact import MAX_EXACT_ROWS, exact_partition
from mupo_ray.core.partition_search import searched_partition

__all__ = ["MAX_EXACT_ROWS", "inertia", "partition", "partition_many"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def partition(
    embeddings: ArrayLike, num_groups: int, min_group_size: int, seed: int = 0
) -> NDArray[np.int64]:
    """Split one cohort into groups of least inertia.

    Args:
        embeddings: [N, D] one row a response; used as given, so normalise them first if angles
            are meant.
        num_groups: K; 1 puts all rows into one group.
        min_group_size: fewest rows in a group.
        seed: of the restarts used above `MAX_EXACT_ROWS` rows; the exact search draws nothing.

    Returns:
        [N] group of each row, 0 to K - 1, larger groups first.

    Raises:
        ValueError: not a matrix, a value is NaN or infinite, or K * min_group_size > N.
    """
    rows = _checked(embeddings, num_groups, min_group_size)
    num_rows = rows.shape[0]
    if num_groups == 1:
        return np.zeros(num_rows, np.int64)
    order = np.array(sorted(range(num_rows), key=lambda i: rows[i].tobytes()))
    rows = rows[order]
    gram = _gram(rows)
    if num_rows <= MAX_EXACT_ROWS:
        repeats = np.append(False, (rows[1:] == rows[:-1]).all(1))
        labels = exact_partition(gram, num_groups, min_group_size, repeats)
    else:
        labels = searched_partition(gram, num_groups, min_group_size, seed)
    group_ids = np.empty(num_rows, np.int64)
    group_ids[order] = _renumbered(labels, num_groups)
    return group_ids


def partition_many(
    cohorts: Sequence[ArrayLike] | NDArray[np.floating],
    num_groups: int,
    min_group_size: int,
    seed: int = 0,
) -> list[NDArray[np.int64]]:
    """Split every cohort of a step; cohorts may differ in size and share the search's tables.

    Args:
        cohorts: B matrices [N_b, D], or one [B, N, D] array.
        num_groups: as in `partition`.
        min_group_size: as in `partition`.
        seed: as in `partition`, the same for each cohort, so that a result does not depend on
            which others it came with.

    Returns:
        B arrays [N_b], each what `partition` gives for that cohort alone.

    Raises:
        ValueError: as `partition`, naming the place of the cohort.
    """
    results = []
    for place, embeddings in enumerate(cohorts):
        try:
            results.append(partition(embeddings, num_groups, min_group_size, seed))
        except ValueError as err:
            raise ValueError(f"cohort {place}: {err}") from err
    return results


def inertia(embeddings: ArrayLike, group_ids: ArrayLike) -> float:
    """Sum over rows of the squared distance to the mean of the own group.

    Args:
        embeddings: [N, D].
        group_ids: [N] integers, need not be consecutive.

    Returns:
        The inertia, in squared units of the embeddings.
    """
    rows = np.asarray(embeddings, np.float64)
    ids = np.asarray(group_ids)
    total = 0.0
    for group in np.unique(ids):
        members = rows[ids == group]
        total += float(((members - members.mean(0)) ** 2).sum())
    return total


def _checked(embeddings: ArrayLike, num_groups: int, min_group_size: int) -> Floats:
    # Adding 0.0 turns -0.0 into 0.0, which must sort alike.
    rows = np.ascontiguousarray(np.asarray(embeddings, np.float64) + 0.0)
    if rows.ndim != 2 or 0 in rows.shape:
        raise ValueError(f"embeddings must be a non-empty [N, D] matrix, got shape {rows.shape}")
    if num_groups < 1 or min_group_size < 1:
        raise ValueError(
            "num_groups and min_group_size must be at least 1, got "
            f"{num_groups} and {min_group_size}"
        )
    need = num_groups * min_group_size
    if need > rows.shape[0]:
        raise ValueError(
            f"num_groups * min_group_size = {need} exceeds the {rows.shape[0]} rows; lower one of "
            "them or sample more responses"
        )
    if not np.isfinite(rows).all():
        bad = np.flatnonzero(~np.isfinite(rows).all(1)).tolist()
        raise ValueError(f"embeddings must be finite, got NaN or infinity in rows {bad}")
    return rows


def _gram(rows: Floats) -> Floats:
    """[N, N] inner products of centred rows, scaled to a largest coordinate of 1.

    Centring keeps close rows far from the origin from cancelling; scaling makes tolerances
    relative and keeps squares finite. Neither changes which partition is best.
    """
    scale = np.abs(rows).max()
    if scale == 0.0:
        return np.zeros((rows.shape[0], rows.shape[0]))
    centred = rows / scale
    centred -= centred.mean(0)
    spread = np.abs(centred).max()
    # Identical rows leave only the rounding of their mean.
    if spread < 1e-14:
        return np.zeros((rows.shape[0], rows.shape[0]))
    centred /= spread
    gram: Floats = centred @ centred.T
    return gram


def _renumbered(labels: Ints, num_groups: int) -> Ints:
    """Number groups by falling size, then by the first row."""
    sizes = np.bincount(labels, minlength=num_groups)
    first = [int(np.argmax(labels == k)) for k in range(num_groups)]
    ranking = sorted(range(num_groups), key=lambda k: (-sizes[k], first[k]))
    number = np.empty(num_groups, np.int64)
    number[ranking] = np.arange(num_groups)
    return number[labels]
