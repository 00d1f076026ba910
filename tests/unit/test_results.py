"""results.json: the schema is a promise, so a file of it lies in tests/golden/."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from eval_problems import RIGHT, problem

from mupo_ray.demo.puzzle_text import write_response
from mupo_ray.demo.puzzles import PROMPT, Puzzle, Strategy
from mupo_ray.demo.shapes import puzzle_measures
from mupo_ray.errors import DataError
from mupo_ray.evaluation.measures import measure_evaluation
from mupo_ray.evaluation.results import (
    EvalResults,
    SamplingSettings,
    load_results,
    results_from_json,
    results_to_json,
    save_results,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "results.json"


@pytest.fixture(scope="module")
def results() -> EvalResults:
    """Every part of the schema is filled: two sets, categories, strategies, scores, left out."""
    puzzle = Puzzle(board=(1, 2, 9, 3, 5, 2, 4, 6), truth=7)
    texts = [write_response(puzzle, strategy) for strategy in (Strategy.ROW, Strategy.COL)] * 4
    vectors = np.eye(8, dtype=np.float32)
    puzzles = [
        problem(
            f"p{i}",
            [RIGHT, "8"] * 4,
            greedy=RIGHT if i else None,
            category="ab"[i % 2],
            texts=texts,
            scores=[0.5, 0.25] * 4,
            embeddings=vectors,
            question=PROMPT,
            set_name="puzzles",
        )
        for i in range(4)
    ]
    plain = [problem(f"q{i}", [RIGHT, None], set_name="plain") for i in range(2)]
    return measure_evaluation(
        {"puzzles": puzzles, "plain": plain},
        model="runs/demo/mupo/step_000060/hf",
        created="2026-01-01T00:00:00+00:00",
        sampling=SamplingSettings(
            num_samples=8, temperature=1.0, top_p=1.0, max_new_tokens=32, seed=0
        ),
        ks=(1, 16),
        further=puzzle_measures,
    )


def test_golden_file(results: EvalResults):
    """Another schema version is needed where a key of this file changes or goes away."""
    found, golden = json.loads(results_to_json(results)), json.loads(GOLDEN.read_text())
    assert flat(found).keys() == flat(golden).keys()
    assert flat(found) == {
        key: pytest.approx(value, abs=1e-9) if isinstance(value, float) else value
        for key, value in flat(golden).items()
    }


def test_round_trip(results: EvalResults, tmp_path: Path):
    assert results_from_json(results_to_json(results)) == results
    path = tmp_path / "heldout" / "results.json"
    save_results(path, results)
    assert load_results(path) == results
    assert [p.name for p in path.parent.iterdir()] == ["results.json"]


def test_keys_of_a_later_writer_are_ignored(results: EvalResults):
    later = json.loads(results_to_json(results)) | {"further": 1}
    assert results_from_json(json.dumps(later)) == results


def test_the_first_version_is_read_without_its_strategies(results: EvalResults):
    older = json.loads(results_to_json(results))
    older["schema_version"] = 1
    for estimates in [older["micro"], *(found["micro"] for found in older["sets"].values())]:
        estimates["strategies"] = None
    assert results_from_json(json.dumps(older)) == replace(results, schema_version=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 3}, "schema_version 3, expected 2"),
        ({"sets": {"a": {"micro": 3}}}, r"sets\.a\.micro: "),
        ({"model": None}, "model: "),
    ],
    ids=["version", "type", "null"],
)
def test_other_files_are_refused(results: EvalResults, tmp_path: Path, change, message):
    path = tmp_path / "results.json"
    path.write_text(json.dumps(json.loads(results_to_json(results)) | change))
    with pytest.raises(DataError, match=message) as caught:
        load_results(path)
    assert str(path) in str(caught.value)
    with pytest.raises(DataError, match="nothing.json"):
        load_results(tmp_path / "nothing.json")


def flat(tree: object, path: str = "") -> dict[str, object]:
    """Path -> leaf."""
    if isinstance(tree, dict):
        items = tree.items()
    elif isinstance(tree, list):
        items = enumerate(tree)
    else:
        return {path: tree}
    return {k: v for key, value in items for k, v in flat(value, f"{path}/{key}").items()}
