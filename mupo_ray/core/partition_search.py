"""Constrained k-means by local search on the Gram matrix, for cohorts too large to solve exactly.

Every start is made feasible by an optimal assignment, then improved by the best single move or swap
until none helps (Hartigan's rule, which leaves local optima of Lloyd's iteration). All starts are
worked on at once: R = starts, N = rows, K = groups.

With q_k the sum of the Gram matrix over group k and n_k its size, the inertia is
trace(gram) - sum_k q_k / n_k, so the search maximises the latter.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Share of the total scatter that a step must win, so that rounding cannot make it circle.
_RELATIVE_GAIN = 1e-12


def searched_partition(
    gram: Floats, num_groups: int, min_group_size: int, seed: int, num_starts: int = 32
) -> Ints:
    """Best of many local searches.

    Args:
        gram: [N, N] inner products of centred rows.
        num_groups: K.
        min_group_size: fewest rows in a group.
        seed: of all starts but the first, which takes the farthest rows as seeds.
        num_starts: searches.

    Returns:
        [N] group of each row, 0 to K - 1.
    """
    rng = np.random.default_rng(seed)
    starts = [farthest_start(gram, num_groups, min_group_size)]
    starts += [
        assigned(_seed_distances(gram, _spread_rows(gram, num_groups, rng)), min_group_size)
        for _ in range(num_starts - 1)
    ]
    labels = _improved(gram, np.stack(starts), num_groups, min_group_size)
    member = np.eye(num_groups)[labels]
    gains = (((gram @ member) * member).sum(1) / member.sum(1)).sum(1)
    best: Ints = labels[int(gains.argmax())]
    return best


def farthest_start(gram: Floats, num_groups: int, min_group_size: int) -> Ints:
    """[N] feasible groups around rows picked one by one, each farthest from those before."""
    distance = _distances(gram)
    seeds = [int(np.diag(gram).argmax())]
    while len(seeds) < num_groups:
        nearest = distance[:, seeds].min(1)
        nearest[seeds] = -1.0
        seeds.append(int(nearest.argmax()))
    return assigned(distance[:, seeds], min_group_size)


def assigned(distance: Floats, min_group_size: int) -> Ints:
    """[N] cheapest assignment of rows to K centres with at least `min_group_size` rows each.

    Each centre offers `min_group_size` places of its own; the places left over cost a row its
    nearest centre. A one-to-one assignment of rows to places is then the constrained optimum.
    """
    num_rows, num_groups = distance.shape
    spare = num_rows - num_groups * min_group_size
    own = np.repeat(distance, min_group_size, axis=1)
    free = np.repeat(distance.min(1, keepdims=True), spare, axis=1)
    rows, places = linear_sum_assignment(np.concatenate([own, free], axis=1))
    labels = np.where(places < own.shape[1], places // min_group_size, distance.argmin(1)[rows])
    return labels.astype(np.int64)


def _distances(gram: Floats) -> Floats:
    squares = np.diag(gram)
    return np.maximum(squares[:, None] + squares[None, :] - 2.0 * gram, 0.0)


def _seed_distances(gram: Floats, seeds: list[int]) -> Floats:
    return _distances(gram)[:, seeds]


def _spread_rows(gram: Floats, num_groups: int, rng: np.random.Generator) -> list[int]:
    """K distinct rows, each drawn with odds by its squared distance from those before."""
    distance = _distances(gram)
    num_rows = gram.shape[0]
    seeds = [int(rng.integers(num_rows))]
    while len(seeds) < num_groups:
        odds = distance[:, seeds].min(1)
        odds[seeds] = 0.0
        if odds.sum() <= 0.0:
            odds = np.ones(num_rows)
            odds[seeds] = 0.0
        seeds.append(int(rng.choice(num_rows, p=odds / odds.sum())))
    return seeds


def _improved(gram: Floats, labels: Ints, num_groups: int, min_group_size: int) -> Ints:
    """[R, N] local optima reached from [R, N] starts."""
    labels = labels.copy()
    tolerance = _RELATIVE_GAIN * float(np.trace(gram)) + 1e-300
    active = np.arange(labels.shape[0])
    while active.size:
        current = labels[active]
        moves, swaps = _gains(gram, current, num_groups, min_group_size)
        num_active, num_rows = current.shape
        best_move = moves.reshape(num_active, -1).argmax(1)
        best_swap = swaps.reshape(num_active, -1).argmax(1)
        at = np.arange(num_active)
        move_gain = moves.reshape(num_active, -1)[at, best_move]
        swap_gain = swaps.reshape(num_active, -1)[at, best_swap]

        go = (move_gain >= swap_gain) & (move_gain > tolerance)
        current[at[go], best_move[go] // num_groups] = best_move[go] % num_groups
        swap = ~go & (swap_gain > tolerance)
        first, second = best_swap[swap] // num_rows, best_swap[swap] % num_rows
        from_first = current[at[swap], first]
        current[at[swap], first] = current[at[swap], second]
        current[at[swap], second] = from_first

        labels[active] = current
        active = active[go | swap]
    return labels


def _gains(
    gram: Floats, labels: Ints, num_groups: int, min_group_size: int
) -> tuple[Floats, Floats]:
    """What each move [R, N, K] and swap [R, N, N] would win; -inf where it is not allowed."""
    squares = np.diag(gram)
    member = np.eye(num_groups)[labels]
    size = member.sum(1)
    reach = gram @ member
    mass = (reach * member).sum(1)

    own = np.take_along_axis(reach, labels[..., None], 2)[..., 0]
    own_size = np.take_along_axis(size, labels, 1)
    own_mass = np.take_along_axis(mass, labels, 1)

    can_leave = own_size > min_group_size
    left = np.maximum(own_size - 1.0, 1.0)
    leave = (own_mass - 2.0 * own + squares) / left - own_mass / own_size
    join = (mass[:, None, :] + 2.0 * reach + squares[:, None]) / (size[:, None, :] + 1.0)
    join -= (mass / size)[:, None, :]
    allowed = can_leave[..., None] & (member == 0.0)
    moves = np.where(allowed, leave[..., None] + join, -np.inf)

    # Element [r, i, j]: what group(i) wins when j takes the place of i.
    cross = np.take_along_axis(reach, np.repeat(labels[:, None, :], labels.shape[1], 1), 2)
    half = -2.0 * own[..., None] + squares[:, None] + squares - 2.0 * gram
    half += 2.0 * cross.transpose(0, 2, 1)
    half /= own_size[..., None]
    same = labels[:, :, None] == labels[:, None, :]
    swaps = np.where(same, -np.inf, half + half.transpose(0, 2, 1))
    return moves, swaps
