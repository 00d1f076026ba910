"""The partition against brute force, an independent dynamic program and k-means-constrained."""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations, product

import numpy as np
import pytest
from k_means_constrained import KMeansConstrained

from mupo_ray.core.grouping import MAX_EXACT_ROWS, inertia, partition, partition_many
from mupo_ray.core.partition_search import searched_partition


def rows_of(kind: str, n: int, k: int, rng: np.random.Generator) -> np.ndarray:
    """Inputs that try a search in different ways."""
    if kind == "random":
        return rng.standard_normal((n, 64))
    if kind == "clustered":
        return rng.standard_normal((k, 8))[rng.integers(0, k, n)] + 0.6 * rng.standard_normal(
            (n, 8)
        )
    if kind == "duplicates":
        return rng.standard_normal((4, 3))[rng.integers(0, 4, n)]
    if kind == "grid":
        return rng.integers(0, 3, (n, 2)).astype(float)
    if kind == "far":
        return 1e6 + rng.standard_normal((n, 5))
    raise AssertionError(kind)


KINDS = ["random", "clustered", "duplicates", "grid", "far"]


def brute_force(rows: np.ndarray, k: int, m: int) -> float:
    best = np.inf
    for tail in product(range(k), repeat=len(rows) - 1):
        labels = np.array((0, *tail))
        if np.bincount(labels, minlength=k).min() >= m:
            best = min(best, inertia(rows, labels))
    return best


def by_dynamic_program(rows: np.ndarray, k: int, m: int) -> float:
    """Best inertia by peeling off the group of the first row that is left."""

    @lru_cache(None)
    def cost(members: tuple[int, ...]) -> float:
        part = rows[list(members)]
        return float(((part - part.mean(0)) ** 2).sum())

    @lru_cache(None)
    def best(rest: tuple[int, ...], groups: int) -> float:
        if groups == 1:
            return cost(rest)
        found = np.inf
        for size in range(m, len(rest) - (groups - 1) * m + 1):
            for more in combinations(rest[1:], size - 1):
                taken = (rest[0], *more)
                left = tuple(i for i in rest if i not in taken)
                found = min(found, cost(taken) + best(left, groups - 1))
        return found

    return best(tuple(range(len(rows))), k)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "k", "m"), [(4, 2, 1), (6, 2, 3), (7, 3, 1), (7, 3, 2)])
def test_optimum_matches_brute_force(kind, n, k, m):
    rng = np.random.default_rng(n * 100 + k * 10 + m)
    for _ in range(2):
        rows = rows_of(kind, n, k, rng)
        ids = partition(rows, k, m)
        assert np.bincount(ids, minlength=k).min() >= m
        assert inertia(rows, ids) == pytest.approx(brute_force(rows, k, m), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("kind", ["random", "clustered", "grid"])
@pytest.mark.parametrize(("n", "k", "m"), [(11, 3, 3), (10, 4, 2), (10, 5, 2)])
def test_optimum_matches_a_dynamic_program(kind, n, k, m):
    rows = rows_of(kind, n, k, np.random.default_rng(n + k))
    best = by_dynamic_program(rows, k, m)
    assert inertia(rows, partition(rows, k, m)) == pytest.approx(best, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("kind", ["random", "clustered", "duplicates"])
@pytest.mark.parametrize(
    ("n", "k", "m"), [(12, 2, 4), (15, 3, 3), (16, 4, 3), (24, 3, 4), (40, 5, 3)]
)
def test_never_worse_than_k_means_constrained(kind, n, k, m):
    rng = np.random.default_rng(n)
    for _ in range(3):
        rows = rows_of(kind, n, k, rng)
        theirs = KMeansConstrained(k, size_min=m, random_state=0).fit_predict(rows)
        ids = partition(rows, k, m)
        assert np.bincount(ids, minlength=k).min() >= m
        assert inertia(rows, ids) <= inertia(rows, theirs) * (1 + 1e-9) + 1e-9


@pytest.mark.parametrize("kind", ["random", "clustered", "grid"])
def test_search_for_large_cohorts_finds_the_known_optimum_of_small_ones(kind):
    rng = np.random.default_rng(4)
    for n, k, m in [(12, 2, 4), (15, 3, 3), (14, 4, 2)]:
        rows = rows_of(kind, n, k, rng)
        centred = rows - rows.mean(0)
        labels = searched_partition(centred @ centred.T, k, m, seed=0)
        exact = inertia(rows, partition(rows, k, m))
        assert inertia(rows, labels) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("n", [9, 15, MAX_EXACT_ROWS + 6])
def test_order_of_responses_does_not_matter(n):
    rng = np.random.default_rng(n)
    rows = rng.standard_normal((n, 16)).astype(np.float32)
    ids = partition(rows, 3, 3)
    for _ in range(4):
        order = rng.permutation(n)
        assert partition(rows[order], 3, 3).tolist() == ids[order].tolist()


def test_order_does_not_matter_where_partitions_tie():
    # Corners of a square: two optimal splits into pairs.
    rows = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    ids = partition(rows, 2, 2)
    for order in ([3, 1, 2, 0], [1, 0, 3, 2], [2, 3, 0, 1]):
        assert partition(rows[order], 2, 2).tolist() == ids[order].tolist()


def test_larger_groups_come_first():
    rows = np.array([[9.0], [0.0], [0.1], [9.1], [0.2], [20.0], [20.1]])
    assert np.bincount(partition(rows, 3, 2)).tolist() == [3, 2, 2]
    assert partition(rows, 3, 2)[[1, 2, 4]].tolist() == [0, 0, 0]


def as_sets(ids: np.ndarray) -> set[frozenset[int]]:
    return {frozenset(np.flatnonzero(ids == k).tolist()) for k in np.unique(ids)}


def test_scale_and_place_do_not_matter():
    rows = np.random.default_rng(0).standard_normal((12, 6))
    plain = as_sets(partition(rows, 3, 2))
    for moved in (rows * 1e150, rows * 1e-150, -rows, rows + 3.0, rows + 1e6):
        assert as_sets(partition(moved, 3, 2)) == plain


def test_identical_rows_get_feasible_groups():
    for rows in (np.ones((15, 8)), np.zeros((15, 8)), np.full((15, 8), 0.1)):
        ids = partition(rows, 3, 3)
        assert np.bincount(ids, minlength=3).min() >= 3
        assert inertia(rows, ids) == pytest.approx(0.0, abs=1e-20)


@pytest.mark.parametrize("seed", [1, 23, 33, 40])
@pytest.mark.parametrize("counts", [(10, 1, 1), (9, 2, 1), (11, 1), (6, 6)])
def test_a_collapsed_cohort_repeats_its_texts(counts, seed):
    """Few distinct rows, as when most samples say the same: hundreds of subsets tie."""
    rows = np.repeat(np.random.default_rng(seed).normal(size=(len(counts), 8)), counts, axis=0)
    ids = partition(rows, 3, 3)
    assert np.bincount(ids).min() >= 3
    library = KMeansConstrained(n_clusters=3, size_min=3, random_state=0).fit_predict(rows)
    assert inertia(rows, ids) <= inertia(rows, library) * (1 + 1e-9) + 1e-9


def test_one_group_is_zeros():
    assert partition(np.random.default_rng(0).standard_normal((5, 3)), 1, 2).tolist() == [0] * 5


@pytest.mark.parametrize(("n", "k", "m"), [(12, 4, 3), (4, 4, 1), (20, 4, 5), (3, 3, 1)])
def test_sizes_that_fit_exactly(n, k, m):
    rows = np.random.default_rng(1).standard_normal((n, 4))
    assert np.bincount(partition(rows, k, m)).tolist() == [m] * k


def test_many_cohorts_of_unequal_size_equal_one_at_a_time():
    rng = np.random.default_rng(2)
    cohorts = [rng.standard_normal((n, 8)) for n in (6, 9, 6, 20)]
    together = partition_many(cohorts, 2, 3)
    assert [g.tolist() for g in together] == [partition(c, 2, 3).tolist() for c in cohorts]
    stacked = rng.standard_normal((3, 8, 5))
    assert len(partition_many(stacked, 2, 3)) == 3


def test_wrong_input_is_named():
    rows = np.zeros((5, 2))
    with pytest.raises(ValueError, match="= 6 exceeds the 5 rows"):
        partition(rows, 2, 3)
    for bad in (np.nan, np.inf):
        broken = rows.copy()
        broken[3, 1] = bad
        with pytest.raises(ValueError, match="rows \\[3\\]"):
            partition(broken, 2, 2)
    with pytest.raises(ValueError, match="cohort 1: "):
        partition_many([np.eye(5), rows[:3]], 2, 2)
    with pytest.raises(ValueError, match="matrix"):
        partition(np.zeros(5), 1, 1)
    with pytest.raises(ValueError, match="at least 1"):
        partition(rows, 0, 1)
