"""How different the responses to one prompt are: MUPO's diversity reward and the metrics watched.

N = responses, D = embedding width. Distances are cosine distances, 1 - cos.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

# Eigenvalues of a kernel of trace 1 below this are rounding.
_MIN_EIGENVALUE = 1e-12


def distance_to_other_groups(embeddings: ArrayLike, group_ids: ArrayLike) -> Floats:
    """Mean cosine distance of each response to those of all other groups.

    MUPO's R_div (arXiv:2604.00479, section 4.2) in the paper's scale, [0, 2]; the released code
    multiplies it by 2. A row of zeros has no direction: it gets 0 and does not count for others.

    Args:
        embeddings: [N, D], need not be normalised.
        group_ids: [N] integer group of each response.

    Returns:
        [N] distances; 0 where there is no other group.

    Raises:
        ValueError: shapes differ, or an embedding is not finite.
    """
    unit, has_direction = _unit_rows(embeddings)
    ids = np.asarray(group_ids)
    if ids.shape != (unit.shape[0],):
        raise ValueError(f"group_ids must have shape ({unit.shape[0]},), got {ids.shape}")
    is_other = ((ids[:, None] != ids[None, :]) & has_direction[None, :]).astype(np.float64)
    num_others = is_other.sum(1)
    total = (is_other * (1.0 - unit @ unit.T)).sum(1)
    mean: Floats = total / np.maximum(num_others, 1.0)
    return np.where(has_direction, np.maximum(mean, 0.0), 0.0)


def pairwise_diversity(embeddings: ArrayLike) -> float:
    """Mean cosine distance over all pairs of responses (the diversity of arXiv:2604.00479, 3.1).

    Args:
        embeddings: [N, D], need not be normalised; rows of zeros are left out.

    Returns:
        The mean, in [0, 2]; 0 with fewer than two rows.

    Raises:
        ValueError: not a matrix, or an embedding is not finite.
    """
    unit, has_direction = _unit_rows(embeddings)
    unit = unit[has_direction]
    num_rows = unit.shape[0]
    if num_rows < 2:
        return 0.0
    upper = np.triu_indices(num_rows, 1)
    return max(0.0, float(1.0 - (unit @ unit.T)[upper].mean()))


def effective_strategies_of_embeddings(embeddings: ArrayLike) -> float:
    """Effective number of distinct responses: the Vendi score (Friedman and Dieng 2023).

    exp of the entropy of the eigenvalues of the cosine kernel divided by N: 1 when all responses
    point one way, N when they are orthogonal.

    Args:
        embeddings: [N, D], need not be normalised; rows of zeros are left out.

    Returns:
        A number in [1, N]; 0 without any row.

    Raises:
        ValueError: not a matrix, or an embedding is not finite.
    """
    unit, has_direction = _unit_rows(embeddings)
    unit = unit[has_direction]
    num_rows = unit.shape[0]
    if num_rows == 0:
        return 0.0
    return _exp_entropy(np.linalg.eigvalsh(unit @ unit.T / num_rows))


def effective_strategies_of_labels(labels: Sequence[Hashable]) -> float:
    """Effective number of distinct labels: exp of the entropy of their shares.

    Args:
        labels: one strategy label a response.

    Returns:
        A number in [1, distinct labels]; 0 without labels.
    """
    counts: dict[Hashable, int] = {}
    for label in labels:
        counts[label] = counts.get(label, 0) + 1
    if not counts:
        return 0.0
    return _exp_entropy(np.array(list(counts.values()), np.float64) / len(labels))


def _exp_entropy(shares: Floats) -> float:
    shares = shares[shares > _MIN_EIGENVALUE]
    shares = shares / shares.sum()
    return float(np.exp(-(shares * np.log(shares)).sum()))


def _unit_rows(embeddings: ArrayLike) -> tuple[Floats, NDArray[np.bool_]]:
    """[N, D] rows of length 1 (rows of zeros stay zeros) and [N] which of them have a direction."""
    rows = np.asarray(embeddings, np.float64)
    if rows.ndim != 2:
        raise ValueError(f"embeddings must be an [N, D] matrix, got shape {rows.shape}")
    if not np.isfinite(rows).all():
        bad = np.flatnonzero(~np.isfinite(rows).all(1)).tolist()
        raise ValueError(f"embeddings must be finite, got NaN or infinity in rows {bad}")
    # Dividing by the largest coordinate first keeps the squares of huge and tiny rows in range.
    largest = np.abs(rows).max(1, keepdims=True, initial=0.0)
    scaled = rows / np.where(largest > 0.0, largest, 1.0)
    length = np.linalg.norm(scaled, axis=1, keepdims=True)
    unit: Floats = scaled / np.where(length > 0.0, length, 1.0)
    return unit, largest[:, 0] > 0.0
