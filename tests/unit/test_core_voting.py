"""Majority vote and best-of-k against every subset, one by one."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
import pytest

from mupo_ray.core.voting import best_of_k, majority_at_k

RIGHT, NONE = "right", None


def vote(answers) -> float:
    """The rule in words: most votes wins, ties are drawn, no votes is wrong."""
    counts = Counter(answer for answer in answers if answer is not NONE)
    top = [answer for answer, count in counts.items() if count == max(counts.values())]
    return (RIGHT in top) / len(top) if top else 0.0


@pytest.mark.parametrize(
    "answers",
    [
        [RIGHT, "a", "a"],
        [RIGHT, RIGHT, "a", "a", "b", NONE],
        [RIGHT, "a", "b", "c", "d"],
        [RIGHT, RIGHT, RIGHT, "a", "a", "b", "b", NONE, NONE],
        [NONE, NONE, RIGHT],
        ["a", "b", NONE],
        [RIGHT] * 4,
    ],
    ids=lambda answers: "".join((answer or "-")[0] for answer in answers),
)
def test_majority_is_the_mean_over_all_subsets(answers):
    counts = Counter(answers)
    wrong = [count for answer, count in counts.items() if answer not in (RIGHT, NONE)]
    ks = range(1, len(answers) + 1)
    found = majority_at_k(len(answers), counts[RIGHT], wrong, ks)
    wanted = [np.mean([vote(subset) for subset in combinations(answers, k)]) for k in ks]
    assert found == pytest.approx(wanted, abs=1e-12)


def test_majority_by_hand():
    # Two right, one wrong. k = 1: 2/3. k = 2: {r, r} wins, twice {r, w} ties: (1 + .5 + .5) / 3.
    assert majority_at_k(3, 2, [1], [1, 2, 3]) == pytest.approx([2 / 3, 2 / 3, 1.0])
    # Three ways to answer, all once: a three-way tie.
    assert majority_at_k(3, 1, [1, 1], [3]) == pytest.approx([1 / 3])
    # Outvoted by a wrong answer, but not by as many different ones.
    assert majority_at_k(6, 2, [4], [6]) == [0.0]
    assert majority_at_k(6, 2, [1, 1, 1, 1], [6]) == [1.0]
    # Nobody answers: wrong. One answer among the mute ones wins wherever it is drawn.
    assert majority_at_k(4, 0, [], [4]) == [0.0]
    assert majority_at_k(4, 1, [], [1, 4]) == pytest.approx([0.25, 1.0])


def test_majority_of_sixteen_against_simulation():
    rng = np.random.default_rng(3)
    answers = np.array([RIGHT] * 5 + ["a"] * 4 + ["b"] * 3 + ["c", "d"] + [""] * 2)
    for k in (3, 8, 12):
        draws = [rng.choice(answers, k, replace=False) for _ in range(4000)]
        share = np.mean([vote([a or NONE for a in draw]) for draw in draws])
        assert majority_at_k(16, 5, [4, 3, 1, 1], [k])[0] == pytest.approx(share, abs=0.025)


def test_majority_of_many_samples_stays_in_range():
    found = majority_at_k(128, 50, [40, 20, 10], range(1, 129))
    assert found[0] == pytest.approx(50 / 128) and found[-1] == 1.0
    assert np.isfinite(found).all() and (np.diff(found[::2]) > -1e-9).all()


@pytest.mark.parametrize(
    ("flags", "scores"),
    [
        ([1, 0, 0, 1, 0], [0.9, 0.8, 0.1, 0.3, 0.5]),
        ([0, 1, 1, 0, 1, 0], [2, 2, 1, 1, 1, 0]),
        ([1, 0, 1, 0], [7, 7, 7, 7]),
        ([0, 0, 0], [1, 2, 3]),
    ],
    ids=["distinct", "ties", "all-tie", "none-right"],
)
def test_best_of_k_is_the_mean_over_all_subsets(flags, scores):
    def best(subset) -> float:
        top = max(scores[i] for i in subset)
        return np.mean([flags[i] for i in subset if scores[i] == top])

    ks = range(1, len(flags) + 1)
    places = range(len(flags))
    wanted = [np.mean([best(subset) for subset in combinations(places, k)]) for k in ks]
    assert best_of_k(flags, scores, ks) == pytest.approx(wanted, abs=1e-12)


def test_best_of_k_by_hand():
    # The right one has the second score of four: best of 2 where the first is not drawn.
    assert best_of_k([0, 1, 0, 0], [4, 3, 2, 1], [1, 2, 3, 4]) == pytest.approx(
        [1 / 4, 1 / 3, 1 / 4, 0]
    )
    # A scorer that knows the truth makes best-of-k pass@k: 1 - C(6, 4) / C(8, 4).
    flags = [1, 1, 0, 0, 0, 0, 0, 0]
    assert best_of_k(flags, flags, [4]) == pytest.approx([11 / 14])


@pytest.mark.parametrize("ks", [[0], [4]])
def test_k_out_of_range(ks):
    with pytest.raises(ValueError, match=r"1\.\.3"):
        majority_at_k(3, 1, [1], ks)
    with pytest.raises(ValueError, match=r"1\.\.3"):
        best_of_k([1, 0, 0], [1, 2, 3], ks)


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match=r"sum to at most 3, got 2 right and \[2\] wrong"):
        majority_at_k(3, 2, [2], [1])
    with pytest.raises(ValueError, match="finite, got nan"):
        best_of_k([1, 0], [1.0, np.nan], [1])
    with pytest.raises(ValueError, match="must be"):
        best_of_k([1, 0], [1.0], [1])
