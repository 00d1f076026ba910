"""Strategies of the laptop task, from texts written for one board."""

from __future__ import annotations

import math

import pytest
from eval_problems import problem

from mupo_ray.demo.puzzle_text import write_response
from mupo_ray.demo.puzzles import PROMPT, Puzzle, Strategy
from mupo_ray.demo.shapes import puzzle_measures, strategy_values
from mupo_ray.evaluation.measures import measure_evaluation
from mupo_ray.evaluation.results import SamplingSettings

# row 2 * 6 - 4 = 8, col 9 - 2 = 7, diag 15 - 1 - 5 = 9, pair 2 + 3 = 5.
PUZZLE = Puzzle(board=(1, 2, 9, 3, 5, 2, 4, 6), truth=7)
ROW, COL, DIAG = (write_response(PUZZLE, s) for s in (Strategy.ROW, Strategy.COL, Strategy.DIAG))
OTHER_WORDS = write_response(PUZZLE, Strategy.COL, wording=1)
# Names the column, holds the diagonal's answer: recognised, not faithful.
UNFAITHFUL = COL.replace(r"\boxed{ 7 }", r"\boxed{ 9 }")
BABBLE = r"<think> right right column </think> \boxed{ 7 }"


def puzzle(name: str, texts: list[str], **options):
    answers = [text.split("{ ")[1].split(" }")[0] for text in texts]
    return problem(name, answers, texts=texts, question=PROMPT, **options)


def test_values_by_hand():
    assert UNFAITHFUL != COL
    texts = [COL, COL, OTHER_WORDS, UNFAITHFUL, ROW, BABBLE, BABBLE, COL, DIAG, DIAG]
    found = strategy_values([puzzle("a", texts), puzzle("b", [BABBLE] * 10)])
    shares = {name: row.tolist() for name, row in found.shares.items()}
    assert shares == {
        "row": [0.1, 0.0],
        "col": [0.5, 0.0],
        "diag": [0.2, 0.0],
        "pair": [0.0, 0.0],
        "unrecognised": [0.2, 1.0],
    }
    # The diagonal comes after the first eight.
    assert found.num_in_first_8.tolist() == [2.0, 0.0]
    assert found.fidelity[0] == 7 / 8 and math.isnan(found.fidelity[1])
    wanted = -sum(p * math.log(p) for p in (5 / 8, 2 / 8, 1 / 8))
    assert found.entropy[0] == pytest.approx(wanted) and math.isnan(found.entropy[1])
    assert found.num_recognised.tolist() == [8.0, 0.0]


def test_a_hasty_guess_that_misses_is_not_faithful():
    hasty = write_response(PUZZLE, Strategy.COL, hasty_guess=6)
    lucky = write_response(PUZZLE, Strategy.COL, hasty_guess=7)
    found = strategy_values([puzzle("a", [hasty, lucky])])
    assert found.fidelity.tolist() == [0.5] and found.shares["col"].tolist() == [1.0]
    assert math.isnan(found.num_in_first_8[0])


def test_estimates_weigh_fidelity_by_chains():
    sampling = SamplingSettings(
        num_samples=8, temperature=1.0, top_p=1.0, max_new_tokens=32, seed=0
    )
    # 8 of 8 chains and 1 of 2 follow: 9 of 10, not the mean of 1 and 1/2.
    problems = [puzzle("a", [COL] * 8), puzzle("b", [COL, UNFAITHFUL] + [BABBLE] * 6)]
    results = measure_evaluation(
        {"s": problems}, model="m", created="", sampling=sampling, further=puzzle_measures
    )
    values = {name: e.value for name, e in results.sets["s"].micro.measures.items()}
    assert values["strategies/fidelity"] == pytest.approx(0.9)
    shares = [v for name, v in values.items() if name.startswith("strategies/share/")]
    assert len(shares) == 5 and sum(shares) == pytest.approx(1.0)
    assert values["strategies/share/unrecognised"] == 6 / 16
    assert values["strategies/num_in_first_8"] == 1.0 and values["strategies/entropy"] == 0.0

    babble = measure_evaluation(
        {"s": [puzzle("a", [BABBLE] * 4)]},
        model="m",
        created="",
        sampling=sampling,
        further=puzzle_measures,
    )
    micro = babble.sets["s"].micro
    assert micro.measures["strategies/share/unrecognised"].value == 1.0
    assert not {"strategies/fidelity", "strategies/num_in_first_8"} & set(micro.measures)
    reasons = {item.measure: item.reason for item in micro.left_out}
    assert reasons["strategies/fidelity"] == "no response is recognised"
    assert reasons["strategies/num_in_first_8"] == "no problem has 8 samples"


def test_other_problems_have_no_measures_of_puzzles():
    asked, mute = puzzle("a", [COL]), puzzle("b", [])
    assert list(puzzle_measures([asked]))[0] == "strategies/share/row"
    assert puzzle_measures([asked, problem("c", ["7"])]) == puzzle_measures([asked, mute]) == {}
