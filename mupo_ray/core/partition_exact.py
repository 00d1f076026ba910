"""The optimum of constrained k-means for small N, from the costs of all subsets of rows.

A subset of rows is a bit mask; its cost is its own scatter. A partition is K disjoint masks that
cover all rows. For K = 2 the second mask is the complement, so the optimum is read off the table of
costs. For K >= 3:

1. Start from a feasible partition and re-split pairs of groups optimally until none improves.
2. Bound from below by linear-programming duality: for any price y_i of each row, a partition costs
   sum_i y_i plus the reduced costs c(S) - y(S) of its groups, hence at least sum_i y_i plus the
   least reduced costs there are. A subset whose reduced cost exceeds its minimum by more than the
   gap between start and bound is in no better partition and is dropped. A few subgradient steps on
   y leave some tens of the 2**N subsets, whatever the data look like.
3. Search the subsets that are left. The bound only prunes, so the result is exact for any y.

With four groups and more the tree of step 3 can grow where the bound is loose (many groups of one
or two rows, without structure). It is cut after a fixed number of nodes, and the best partition
found by then, or by `partition_search.py`, is returned.

The bound is that of column generation for minimum sum-of-squares clustering (du Merle et al. 2000).
"""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mupo_ray.core.partition_search import farthest_start, searched_partition

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# 2**N subsets are priced: 1 MiB of costs at 17 rows, twice that for each row more.
MAX_EXACT_ROWS = 18
# Differences below this share of the total scatter are rounding, not a better partition.
_RELATIVE_TOLERANCE = 1e-12
# Once so few subsets are left, searching them costs less than another round on the prices. Three
# groups take one look-up a first group, more groups a tree.
_FEW_SUBSETS = 96
_FEW_SUBSETS_OF_THREE = 400
_MAX_ROUNDS = 30
# So many rounds without an end mean a poor start: worth a wider search for a better one.
_ROUNDS_BEFORE_SEARCH = 8
# Prices are raised on the subsets that matter most; all are priced again after each round.
_WORKING_SUBSETS = 256
_PRICE_STEPS = 8
# About half a second; two and three groups never come near.
_MAX_NODES = 20_000


class _Tables(NamedTuple):
    """What depends on N, K and the smallest size alone. A mask is `high << len(low) | low`."""

    low: Floats
    """[2**l, l] members of each low half of a mask."""
    high: Floats
    """[2**h, h] members of each high half."""
    negative_inverse_size: Floats
    """[2**N] -1 / |S|, 0 where the size is not allowed."""
    forbidden: Floats
    """[2**N] infinity where the size is not allowed, else 0."""
    min_group_size: int


def exact_partition(
    gram: Floats, num_groups: int, min_group_size: int, repeats: NDArray[np.bool_]
) -> Ints:
    """Partition of least inertia.

    Args:
        gram: [N, N] inner products of centred rows, N <= `MAX_EXACT_ROWS`.
        num_groups: K >= 2, with K * min_group_size <= N.
        min_group_size: fewest rows in a group.
        repeats: [N] True for a row that equals the one before it.

    Returns:
        [N] group of each row, 0 to K - 1.
    """
    num_rows = gram.shape[0]
    tables = _tables(num_rows, num_groups, min_group_size)
    cost = _subset_costs(gram, tables)
    if num_groups == 2:
        # Masks with row 0; the complement of mask S is 2**N - 1 - S.
        pair = cost[1::2] + cost[::-1][1::2]
        first = 2 * int(pair.argmin()) + 1
        return _labels([first, (1 << num_rows) - 1 - first], num_rows)

    tolerance = _RELATIVE_TOLERANCE * float(np.trace(gram))
    start = farthest_start(gram, num_groups, min_group_size)
    masks = _resplit(cost, _masks(start, num_groups), tolerance)
    if cost[masks].sum() <= tolerance:
        return _labels(masks, num_rows)
    subsets = np.flatnonzero((tables.forbidden == 0.0) & _takes_runs(repeats))
    masks, left, prices = _promising_subsets(cost, gram, tables, masks, subsets, tolerance)
    if not left.size:
        return _labels(masks, num_rows)
    upper = float(cost[masks].sum())
    better, is_complete = _best_cover(cost, left, prices, num_groups, upper - tolerance)
    candidates = [masks if better is None else better]
    if not is_complete:
        wide = searched_partition(gram, num_groups, min_group_size, seed=0)
        candidates.append(_resplit(cost, _masks(wide, num_groups), tolerance))
    return _labels(min(candidates, key=lambda masks: float(cost[masks].sum())), num_rows)


@lru_cache(maxsize=16)
def _tables(num_rows: int, num_groups: int, min_group_size: int) -> _Tables:
    num_low = (num_rows + 1) // 2
    num_high = num_rows - num_low
    low = _bits_of(np.arange(1 << num_low), num_low)
    high = _bits_of(np.arange(1 << num_high), num_high)
    size = (high.sum(1)[:, None] + low.sum(1)).reshape(-1)
    largest = num_rows - (num_groups - 1) * min_group_size
    allowed = (size >= min_group_size) & (size <= largest)
    return _Tables(
        low=low,
        high=high,
        negative_inverse_size=np.where(allowed, -1.0 / np.maximum(size, 1.0), 0.0),
        forbidden=np.where(allowed, 0.0, np.inf),
        min_group_size=min_group_size,
    )


def _bits_of(masks: Ints, num_bits: int) -> Floats:
    """[n, num_bits] 1.0 where a mask holds the row."""
    return ((masks[:, None] >> np.arange(num_bits)) & 1).astype(np.float64)


def _subset_costs(gram: Floats, tables: _Tables) -> Floats:
    """[2**N] scatter of each subset, sum_i g_ii - sum_ij g_ij / |S|; infinity if not allowed."""
    low, high = tables.low, tables.high
    n = low.shape[1]
    cost = (2.0 * (high @ gram[n:, :n])) @ low.T
    cost += ((low @ gram[:n, :n]) * low).sum(1)
    cost += ((high @ gram[n:, n:]) * high).sum(1)[:, None]
    flat: Floats = cost.reshape(-1)
    flat *= tables.negative_inverse_size
    cost += _subset_sums(np.diag(gram), tables)
    flat += tables.forbidden
    return flat


def _subset_sums(values: Floats, tables: _Tables) -> Floats:
    """[2**h, 2**l] sum of [N] values over each subset."""
    n = tables.low.shape[1]
    sums: Floats = (tables.high @ values[n:])[:, None] + tables.low @ values[:n]
    return sums


def _masks(labels: Ints, num_groups: int) -> list[int]:
    bits = 1 << np.arange(labels.shape[0])
    return [int(bits[labels == k].sum()) for k in range(num_groups)]


def _labels(masks: list[int], num_rows: int) -> Ints:
    labels = np.empty(num_rows, np.int64)
    for k, mask in enumerate(masks):
        labels[_members(mask)] = k
    return labels


def _members(mask: int) -> list[int]:
    return [i for i in range(mask.bit_length()) if mask >> i & 1]


def _resplit(cost: Floats, masks: list[int], tolerance: float) -> list[int]:
    """Split the union of two groups anew, optimally, until no pair of groups improves."""
    masks = list(masks)
    settled: set[int] = set()
    improved = True
    while improved:
        improved = False
        for a, b in combinations(range(len(masks)), 2):
            union = masks[a] | masks[b]
            if union in settled:
                continue
            settled.add(union)
            first = _halves(union)
            pair = cost[first] + cost[union ^ first]
            best = int(pair.argmin())
            if pair[best] < cost[masks[a]] + cost[masks[b]] - tolerance:
                masks[a] = int(first[best])
                masks[b] = union ^ masks[a]
                improved = True
    return masks


def _halves(union: int) -> Ints:
    """Subsets of a mask that hold its lowest row: one of each complementary pair."""
    lowest, *rest = _members(union)
    subsets = np.empty(1 << len(rest), np.int64)
    subsets[0] = 1 << lowest
    for i, row in enumerate(rest):
        np.bitwise_or(subsets[: 1 << i], 1 << row, out=subsets[1 << i : 2 << i])
    return subsets


def _takes_runs(repeats: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """[2**N] True for subsets that take a run of neighbours out of each run of equal rows.

    Equal rows may change places, so some best partition gives the first of them to one group, the
    next ones to another, and so on. Without this, ten equal texts are hundreds of equal subsets.
    """
    masks = np.arange(1 << repeats.shape[0])
    result = np.ones(masks.shape[0], bool)
    firsts = np.flatnonzero(~repeats)
    for first, stop in zip(firsts, [*firsts[1:], repeats.shape[0]], strict=True):
        if stop - first < 3:  # What is taken of two neighbours is a run.
            continue
        taken = masks >> first & ((1 << int(stop - first)) - 1)
        # Adding its lowest bit to a run of bits carries out of all of them.
        result &= (taken + (taken & -taken)) & taken == 0
    return result


def _promising_subsets(
    cost: Floats,
    gram: Floats,
    tables: _Tables,
    masks: list[int],
    subsets: Ints,
    tolerance: float,
) -> tuple[list[int], Ints, Floats]:
    """Drop subsets that no partition better than the start can use.

    Args:
        cost: [2**N] scatter of each subset.
        gram: [N, N].
        tables: of this N, K and smallest size.
        masks: start, K masks.
        subsets: [n] masks that some best partition is made of.
        tolerance: differences that count as rounding.

    Returns:
        The start or a better one found on the way; the [n] masks left, none where that start is
        proven optimal; the [N] prices of the best bound.
    """
    num_groups = len(masks)
    few = _FEW_SUBSETS_OF_THREE if num_groups == 3 else _FEW_SUBSETS
    upper = float(cost[masks].sum())
    prices = best_prices = _first_prices(gram, masks)
    best_gap = np.inf
    left = subsets
    working = left[:0]
    for round_ in range(_MAX_ROUNDS):
        reduced = cost[left] - _subset_sums(prices, tables).reshape(-1)[left]
        floors = _floors(reduced, left)
        gap = upper - float(prices.sum()) - floors[1] - (num_groups - 1) * floors[0]
        above = reduced - np.where(left & 1, floors[1], floors[0])
        keep = above <= gap + tolerance
        left, above = left[keep], above[keep]
        if gap < best_gap:
            best_prices, best_gap = prices, gap

        cover = _completed(cost, left, above, num_groups, gram.shape[0])
        if round_ == _ROUNDS_BEFORE_SEARCH and left.size > few:
            wide = searched_partition(gram, num_groups, tables.min_group_size, seed=0, num_starts=8)
            cover = min(cover, _masks(wide, num_groups), key=lambda m: float(cost[m].sum()))
        if cost[cover].sum() < upper - tolerance:
            masks = _resplit(cost, cover, tolerance)
            saved = upper - float(cost[masks].sum())
            upper, best_gap = upper - saved, best_gap - saved
        if best_gap <= tolerance:
            return masks, left[:0], best_prices
        if left.size <= few:
            break

        if left.size > _WORKING_SUBSETS:
            lowest = np.argpartition(above, _WORKING_SUBSETS)[:_WORKING_SUBSETS]
            # Ties may fill it with one kind, and the bound needs the least of both.
            kinds = [np.flatnonzero(left & 1 == bit) for bit in (0, 1)]
            least = [kind[above[kind].argmin()] for kind in kinds]
            working = np.union1d(working, left[np.append(lowest, least)])
        else:
            working = left
        prices = _raised_prices(cost, working, best_prices, num_groups, upper)
    return masks, left, best_prices


def _floors(reduced: Floats, subsets: Ints) -> tuple[float, float]:
    """Least reduced cost of the subsets without row 0 and with it.

    Exactly one group of a partition holds row 0, so the two kinds count separately.
    """
    has_row0 = (subsets & 1).astype(bool)
    return float(reduced[~has_row0].min()), float(reduced[has_row0].min())


def _completed(
    cost: Floats, left: Ints, above: Floats, num_groups: int, num_rows: int
) -> list[int]:
    """A partition from the subsets of least reduced cost, the last two groups split optimally."""
    chosen: list[int] = []
    rest = (1 << num_rows) - 1
    for _ in range(num_groups - 2):
        row = rest & -rest
        fits = np.flatnonzero((left & ~rest == 0) & (left & row != 0))
        if not fits.size:
            break
        chosen.append(int(left[fits[above[fits].argmin()]]))
        rest ^= chosen[-1]
    if not rest:
        # The groups picked took all rows; a mask of no rows costs infinity.
        return [0] * num_groups
    first = _halves(rest)
    pair = cost[first] + cost[rest ^ first]
    best = int(first[pair.argmin()])
    chosen += [best, rest ^ best]
    return chosen + [0] * (num_groups - len(chosen))


def _raised_prices(
    cost: Floats, subsets: Ints, prices: Floats, num_groups: int, upper: float
) -> Floats:
    """[N] prices after some Polyak steps that raise the bound as seen by `subsets` alone."""
    num_rows = prices.shape[0]
    kinds = []
    for kind, count in (
        (subsets[subsets & 1 == 1], 1),
        (subsets[subsets & 1 == 0], num_groups - 1),
    ):
        kinds.append((cost[kind], _bits_of(kind, num_rows), count))
    sharpness = 3.0 * np.log(subsets.size)
    best, best_gap, stride = prices, np.inf, 1.0
    for _ in range(_PRICE_STEPS):
        aboves, gap = [], upper - float(prices.sum())
        for kind_cost, member, count in kinds:
            reduced = kind_cost - member @ prices
            least = float(reduced.min())
            gap -= count * least
            aboves.append(reduced - least)
        if gap < best_gap:
            best, best_gap, best_aboves = prices, gap, aboves
        else:
            stride *= 0.5
        if best_gap <= 1e-3 * upper / num_rows:
            break
        # Subgradient of the bound, its minima softened so that near ties share it.
        slope = np.ones(num_rows)
        for (_, member, count), above in zip(kinds, best_aboves, strict=True):
            weight = np.exp(above * (-sharpness / best_gap))
            slope -= (count / weight.sum()) * (weight @ member)
        steep = float(slope @ slope)
        if steep <= 1e-14:
            break
        prices = best + (stride * best_gap / steep) * slope
    return best


def _first_prices(gram: Floats, masks: list[int]) -> Floats:
    """[N] what each row costs its group in `masks`: the scatter saved by taking it out."""
    prices = np.empty(gram.shape[0])
    for mask in masks:
        rows = _members(mask)
        size = len(rows)
        block = gram[np.ix_(rows, rows)]
        distance = np.diag(block) - 2.0 * block.mean(1) + block.mean()
        prices[rows] = distance * (size / max(size - 1, 1))
    return prices


def _best_cover(
    cost: Floats, left: Ints, prices: Floats, num_groups: int, below: float
) -> tuple[list[int] | None, bool]:
    """Cheapest partition of `left` that costs less than `below`, and whether all were searched."""
    num_rows = prices.shape[0]
    reduced = cost[left] - _bits_of(left, num_rows) @ prices
    lowest = left & -left
    by_lowest = [np.flatnonzero(lowest == 1 << row) for row in range(num_rows)]
    least = float(reduced[lowest > 1].min())
    total = float(prices.sum())
    best: list[int] | None = None
    nodes_left = _MAX_NODES if num_groups > 3 else 1 << num_rows

    def extend(rest: int, chosen: list[int], spent: float, bound: float) -> None:
        """Cover `rest`; `bound` is the sum of prices plus the reduced costs of `chosen`."""
        nonlocal best, below, nodes_left
        nodes_left -= 1
        if nodes_left < 0:
            return
        remaining = num_groups - len(chosen)
        candidates = by_lowest[(rest & -rest).bit_length() - 1]
        fits = (left[candidates] & ~rest) == 0
        fits &= reduced[candidates] < below - bound - (remaining - 1) * least
        candidates = candidates[fits]
        if not candidates.size:
            return
        if remaining == 2:
            first = left[candidates]
            pair = cost[first] + cost[rest ^ first]
            i = int(pair.argmin())
            if spent + pair[i] < below:
                below = float(spent + pair[i])
                best = [*chosen, int(first[i]), rest ^ int(first[i])]
            return
        for i in candidates[np.argsort(reduced[candidates], kind="stable")].tolist():
            next_bound = bound + float(reduced[i])
            if next_bound + (remaining - 1) * least >= below:
                break
            mask = int(left[i])
            extend(rest ^ mask, [*chosen, mask], spent + float(cost[mask]), next_bound)

    extend((1 << num_rows) - 1, [], 0.0, total)
    return best, nodes_left >= 0
