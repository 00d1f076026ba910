"""pass@k by hand, and seeds that never change."""

from __future__ import annotations

import subprocess
import sys
from itertools import combinations

import numpy as np
import pytest

from mupo_ray.core.passk import any_of_k, pass_at_k, pass_at_k_table
from mupo_ray.core.seeding import derive_seed


def test_pass_at_k_golden():
    assert pass_at_k(8, 2, 4) == pytest.approx(0.785714, abs=6e-7)
    assert pass_at_k(10, 1, 4) == pytest.approx(0.4)
    assert pass_at_k(5, 0, 5) == 0.0
    assert pass_at_k(5, 1, 5) == 1.0


def test_pass_at_k_counts_subsets():
    for n in range(1, 8):
        for c in range(n + 1):
            flags = [i < c for i in range(n)]
            for k in range(1, n + 1):
                share = np.mean([any(s) for s in combinations(flags, k)])
                assert pass_at_k(n, c, k) == pytest.approx(share, abs=1e-12)


def test_pass_at_k_of_many_samples_stays_in_range():
    # C(n, 1000) overflows; the chance to miss 5000 right ones of 10000 a thousand times does not.
    assert pass_at_k(10_000, 5_000, 1000) == pytest.approx(1.0)
    assert pass_at_k(10_000, 1, 100) == pytest.approx(0.01)


@pytest.mark.parametrize(("n", "c", "k"), [(3, 0, 5), (3, 1, 5), (99, 0, 100)])
def test_c13_too_few_samples_give_no_number(n, c, k):
    with pytest.raises(ValueError, match=f"k must be in 1..{n}"):
        pass_at_k(n, c, k)
    with pytest.raises(ValueError, match=f"k must be in 1..{n}"):
        pass_at_k_table([(200, 3), (n, c)], [1, k])


def test_pass_at_k_table_has_a_row_a_k():
    table = pass_at_k_table([(8, 2), (10, 1), (8, 2)], [1, 4])
    assert table == pytest.approx(np.array([[0.25, 0.1, 0.25], [11 / 14, 0.4, 11 / 14]]))
    assert pass_at_k_table([], [1]).shape == (1, 0)


def test_any_of_k_uses_disjoint_blocks():
    flags = [[0, 0, 1, 0], [0, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1]]
    assert any_of_k(flags, 4).tolist() == [1.0, 0.0, 0.5, 0.0]
    with pytest.raises(ValueError, match="problem 1 has 3 samples"):
        any_of_k([[1] * 4, [1] * 3], 4)


def test_seeds_are_the_same_in_another_process():
    script = "from mupo_ray.core.seeding import derive_seed as d; print(d(7, 'prompt-1', 3), d(0))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == [str(derive_seed(7, "prompt-1", 3)), str(derive_seed(0))]
    # Frozen: another value here means that resumed runs sample other responses.
    assert (derive_seed(7, "prompt-1", 3), derive_seed(0)) == FROZEN


FROZEN = (979687319, 1257786444)


def test_seeds_tell_their_parts_apart():
    keys = [(0,), (1,), (0, 1), (1, 0), (0, "1"), (0, "a", "bc"), (0, "ab", "c"), (0, "abc"), (-1,)]
    seeds = [derive_seed(*key) for key in keys]
    assert len(set(seeds)) == len(keys)
    assert all(0 <= s < 2**31 for s in seeds)
    assert derive_seed(0, np.int64(1)) == derive_seed(0, 1)
    with pytest.raises(TypeError):
        derive_seed(0, 1.5)
    # Spread over the whole range: the mean of many is near the middle.
    many = [derive_seed(0, "x", i) for i in range(4000)]
    assert len(set(many)) == 4000
    assert np.mean(many) / 2**31 == pytest.approx(0.5, abs=0.02)
