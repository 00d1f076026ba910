"""Measures of an evaluation, on sets small enough to count by hand."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np
import pytest
from eval_problems import RIGHT, problem, response

from mupo_ray.core.seeding import derive_seed
from mupo_ray.evaluation.answers import answer_key, count_answers
from mupo_ray.evaluation.measures import measure_evaluation
from mupo_ray.evaluation.results import Estimates, SamplingSettings
from mupo_ray.evaluation.samples import EvaluatedProblem

SAMPLING = SamplingSettings(num_samples=4, temperature=1.0, top_p=1.0, max_new_tokens=32, seed=0)


def measure(problems, **options):
    found = measure_evaluation(
        {"heldout": problems},
        model="m",
        created="2026-01-01T00:00:00+00:00",
        sampling=SAMPLING,
        **options,
    )
    return found.sets["heldout"]


def reason_of(estimates: Estimates, measure: str) -> str:
    return {item.measure: item.reason for item in estimates.left_out}[measure]


def test_one_right_answer_of_four_is_always_among_four():
    """The set of which a biased estimator, drawing with replacement, says 0.684."""
    biased = 1 - (3 / 4) ** 4
    assert biased == pytest.approx(0.684, abs=5e-4)
    scores = [0.2, 0.9, 0.1, 0.3]
    problems = [problem(str(i), ["1", RIGHT, "2", "3"], scores=scores) for i in range(5)]
    found = measure(problems).micro
    assert found.pass_at_k[4].value == found.any_of_k[4].value == found.best_of_k[4].value == 1.0
    assert found.pass_at_k[1].value == 0.25
    assert found.majority_at_k[4].value == pytest.approx(0.25)


def test_more_samples_than_there_are_is_left_out_with_a_reason():
    problems = [problem("a", [RIGHT, "1", "2"]), problem("b", [RIGHT] * 8)]
    found = measure(problems, ks=[1, 5]).micro
    for values in (found.pass_at_k, found.any_of_k, found.majority_at_k):
        assert set(values) == {1, 2, 3}
    expected = "needs 5 samples of every problem; the fewest are 3"
    for name in ("pass@5", "any@5", "majority@5", "best@5"):
        assert reason_of(found, name) == expected
    assert "pass@1" not in {item.measure for item in found.left_out}


def test_nothing_right_is_zero():
    found = measure([problem(str(i), ["1", None, "2", "1"], greedy="1") for i in range(6)]).micro
    for values in (found.pass_at_k, found.any_of_k, found.majority_at_k):
        assert [estimate.value for estimate in values.values()] == [0.0] * 4
        assert all(e.low == 0.0 and 0.0 < e.high < 1.0 for e in values.values())
    assert found.measures["acc@1"].value == found.measures["acc@1_sampled"].value == 0.0


def test_no_problems_is_an_error():
    with pytest.raises(ValueError, match="set 'heldout' has no problems; at least one"):
        measure([])
    with pytest.raises(ValueError, match="sets is empty"):
        measure_evaluation({}, model="m", created="", sampling=SAMPLING)


def test_every_measure_by_hand():
    along = np.eye(4, dtype=np.float32)
    problems = [
        # Four directions: distance 1, four strategies. Two right, two ways to be wrong.
        problem("a", [RIGHT, "1", RIGHT, "2"], greedy=RIGHT, embeddings=along),
        # One direction. One answer of two samples; two give none and are cut.
        problem("b", ["1", None, "1", None], greedy="1", embeddings=along[[0, 0, 0, 0]]),
    ]
    found = measure(problems).micro
    values = {name: estimate.value for name, estimate in found.measures.items()}
    entropy = math.log(2) / 2 + math.log(4) / 2
    assert values == pytest.approx(
        {
            "acc@1": 0.5,
            "acc@1_sampled": 0.25,
            "diversity": 0.5,
            "effective_strategies": 2.5,
            "answer_entropy": entropy / 2,
            "length": 10.0,
            "truncated_frac": 0.25,
            "format": 0.75,
        }
    )
    assert found.reasons == {"wrong": 4, "no_answer": 2, "right": 2}
    assert (found.num_problems, found.num_samples) == (2, 8)
    # Blocks of two: (right, 1), (right, 2) of the first problem.
    assert found.any_of_k[2].value == 0.5
    # Of six pairs of the first, five hold a right one; of the second, none.
    assert found.pass_at_k[2].value == pytest.approx(5 / 12)
    # The right answer wins alone in one pair, ties in four.
    assert found.majority_at_k[2].value == pytest.approx((1 + 4 / 2) / 6 / 2)


def test_what_was_not_asked_for_is_left_out():
    found = measure([problem("a", [None, None]), problem("b", [None, None])]).micro
    assert set(found.measures) == {"acc@1_sampled", "length", "truncated_frac", "format"}
    assert reason_of(found, "acc@1") == "no problem has a greedy answer"
    assert "embeddings" in reason_of(found, "diversity")
    assert reason_of(found, "answer_entropy") == "no sample has an answer"
    assert "score" in reason_of(found, "best@k")
    assert not any("/" in name for name in found.measures) and found.best_of_k == {}
    bare = measure([problem("a", [], greedy=RIGHT), problem("b", [], greedy="1")], ks=[1]).micro
    assert {name: e.value for name, e in bare.measures.items()} == {"acc@1": 0.5}
    assert bare.pass_at_k == {} and "fewest are 0" in reason_of(bare, "pass@1")


def test_a_measure_is_over_the_problems_that_have_it():
    problems = [
        problem("a", [RIGHT, RIGHT], greedy=RIGHT),
        problem("b", [RIGHT, "1"]),
        problem("c", ["1", "1"], greedy="1"),
    ]
    found = measure(problems).micro.measures
    assert (found["acc@1"].value, found["acc@1"].num_problems) == (0.5, 2)
    assert (found["acc@1_sampled"].value, found["acc@1_sampled"].num_problems) == (0.5, 3)


def test_micro_counts_problems_and_macro_categories():
    problems = [
        *(problem(f"a{i}", [RIGHT, RIGHT], category="algebra") for i in range(3)),
        *(problem(f"b{i}", ["1", RIGHT], category="geometry") for i in range(1)),
    ]
    found = measure(problems)
    assert found.micro.pass_at_k[1].value == pytest.approx((3 + 0.5) / 4)
    assert found.macro.pass_at_k[1].value == pytest.approx((1 + 0.5) / 2)
    assert found.macro.pass_at_k[1].num_problems == 4
    assert list(found.by_category) == ["algebra", "geometry"]
    assert found.by_category["geometry"].pass_at_k[1].value == 0.5
    # One problem says nothing about the spread.
    assert found.by_category["geometry"].pass_at_k[1].low is None
    assert found.by_category["geometry"].num_problems == 1
    without = measure([*problems, problem("c", [RIGHT, RIGHT])])
    assert without.macro is None and set(without.by_category) == {"algebra", "geometry"}


def test_over_sets_each_problem_or_each_set_counts():
    found = measure_evaluation(
        data={"easy": "easy.parquet"},
        sets={
            "easy": [problem(str(i), [RIGHT, RIGHT, RIGHT]) for i in range(3)],
            "hard": [problem("x", ["1", "1"])],
        },
        model="m",
        created="",
        sampling=SAMPLING,
    )
    assert found.micro.pass_at_k[1].value == 0.75 and found.macro.pass_at_k[1].value == 0.5
    assert (found.sets["easy"].data, found.sets["hard"].data) == ("easy.parquet", None)
    # Over both sets, every problem has two samples; the easy set alone has three.
    assert set(found.micro.pass_at_k) == {1, 2} and set(found.sets["easy"].micro.pass_at_k) == {
        1,
        2,
        3,
    }


def test_pass_at_k_of_sixteen_against_simulation():
    """The mean of many sets' estimates is the chance itself: k fresh samples, one right."""
    rng = np.random.default_rng(derive_seed(0, "pass"))
    ability = rng.beta(1, 2, 400)
    problems = [
        problem(str(i), [RIGHT if hit else "1" for hit in rng.random(16) < p])
        for i, p in enumerate(ability)
    ]
    found = measure(problems).micro
    for k in (1, 4, 8, 16):
        fresh = np.mean([(rng.random((400, k)) < ability[:, None]).any(1) for _ in range(50)])
        estimate = found.pass_at_k[k]
        assert estimate.value == pytest.approx(fresh, abs=0.03)
        assert estimate.low < fresh < estimate.high


@pytest.mark.parametrize(
    ("left", "right", "is_same"),
    [
        ("1/2", "0.5", True),
        (r"\frac{1}{2}", "0.50", True),
        ("50%", "50", False),
        ("(B)", "B", True),
        ("B. 12 cm", "B", True),
        (r"\text{Yes}", "yes", True),
        ("x", "X", False),
        ("x+1", "1+x", False),
        ("ACB", "ABC", False),
    ],
)
def test_wrong_answers_that_are_one(left, right, is_same):
    assert (answer_key(left) == answer_key(right)) is is_same


def test_right_answers_are_one_however_they_are_spelled():
    answers = (
        replace(response(RIGHT), extracted="7.0"),
        replace(response(RIGHT), extracted="seven"),
        # A model judged an answer right that has no box.
        replace(response(RIGHT), extracted=None),
        response("1"),
        response("1.0"),
        response("2"),
        response(None),
    )
    counts = count_answers(replace(problem("a", []), samples=answers))
    assert (counts.num_samples, counts.num_correct, counts.wrong) == (7, 3, (2, 1))
    assert counts.sizes == (3, 2, 1)


def test_a_thousand_problems_take_about_a_second():
    rng = np.random.default_rng(0)
    problems: list[EvaluatedProblem] = [
        problem(
            str(i),
            [str(a) for a in rng.integers(1, 9, 16)],
            greedy="1",
            scores=list(rng.random(16)),
            embeddings=rng.normal(size=(16, 64)).astype(np.float32),
            category=str(i % 5),
        )
        for i in range(1000)
    ]
    began = time.process_time()
    found = measure(problems)
    assert time.process_time() - began < 6.0  # 1.2 s where nothing else runs.
    assert len(found.micro.pass_at_k) == 16 and found.macro is not None
