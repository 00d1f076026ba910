"""Two evaluations compared, on problems few enough to count."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from eval_problems import RIGHT, problem
from pydantic import TypeAdapter
from scipy.stats import spearmanr

from mupo_ray.core.intervals import spearman_interval
from mupo_ray.errors import DataError
from mupo_ray.evaluation.compare import Comparison, compare_folders, compare_runs, save_comparison
from mupo_ray.evaluation.measures import measure_evaluation
from mupo_ray.evaluation.results import SamplingSettings, save_results
from mupo_ray.evaluation.samples import save_problems
from mupo_ray.evaluation.tables import comparison_text

SAMPLING = SamplingSettings(num_samples=4, temperature=1.0, top_p=1.0, max_new_tokens=32, seed=0)
ROOT = Path(__file__).parents[2]


def compare(ours, theirs):
    found = compare_runs({"heldout": ours}, {"heldout": theirs}, run_a="a", run_b="b")
    return found.sets["heldout"]


def test_mcnemar_by_hand():
    # a alone solves 1, b alone 8: twice the chance of at most 1 of 9, 2 (1 + 9) / 2^9.
    greedy = [(RIGHT, RIGHT)] * 5 + [(RIGHT, "1")] + [("1", RIGHT)] * 8 + [("1", None)] * 2
    ours = [problem(str(i), [], greedy=a) for i, (a, _) in enumerate(greedy)]
    theirs = [problem(str(i), [], greedy=b) for i, (_, b) in enumerate(greedy)]
    g = compare(ours, theirs).greedy
    assert (g.num_both, g.num_only_a, g.num_only_b, g.num_neither) == (5, 1, 8, 2)
    assert (g.acc_a, g.acc_b, g.num_problems) == (6 / 16, 13 / 16, 16)
    assert g.p_value == pytest.approx(20 / 512)
    same = compare(ours, ours)
    assert same.greedy.p_value == 1.0 and same.only_a == same.only_b == ()


def test_problems_are_paired_whatever_their_order():
    ours = [problem("x", [RIGHT] * 2), problem("y", ["1", RIGHT]), problem("z", ["1"] * 2)]
    theirs = [problem("w", ["1"] * 2), problem("z", [RIGHT] * 2), problem("y", ["1"] * 2)]
    found = compare(ours, theirs)
    assert (found.num_shared, found.num_only_a, found.num_only_b) == (2, 1, 1)
    d = found.differences["pass@1"]
    # y: .5 -> 0, z: 0 -> 1.
    assert (d.a, d.b, d.num_problems) == (0.25, 0.5, 2) and d.difference == 0.25
    assert [item.prompt_id for item in found.only_a] == ["y"]
    assert [item.prompt_id for item in found.only_b] == ["z"]
    text = comparison_text(
        compare_runs({"s": ours}, {"s": theirs}, run_a="a", run_b="b"), num_problems=1
    )
    assert "2 problems in both; left out: 1 only in a, 1 only in b" in text


def test_a_row_held_twice_is_paired_in_order():
    ours = [replace(problem("x", [a]), position=i) for i, a in enumerate([RIGHT, "1"])]
    theirs = [replace(problem("x", [a]), position=i) for i, a in enumerate(["1", RIGHT])]
    found = compare(ours, theirs)
    assert (found.num_shared, len(found.only_a), len(found.only_b)) == (2, 1, 1)


def test_nothing_in_common_is_an_error():
    with pytest.raises(DataError, match=r"share no set: a has \['p'\], b has \['q'\]"):
        compare_runs({"p": [problem("x", [])]}, {"q": [problem("x", [])]}, run_a="a", run_b="b")
    with pytest.raises(DataError, match="none of the 2 and 1 problems are in both"):
        compare([problem("x", ["1"]), problem("y", ["1"])], [problem("z", ["1"])])


def test_sets_of_one_run_are_named():
    one = [problem("x", [RIGHT]), problem("y", ["1"])]
    found = compare_runs({"p": one, "q": one}, {"q": one, "r": one}, run_a="a", run_b="b")
    assert (list(found.sets), found.sets_only_a, found.sets_only_b) == (["q"], ("p",), ("r",))


def test_what_one_run_solves_comes_with_both_responses():
    ours = [
        problem("once", ["1", RIGHT, "2", "3"], greedy="1"),
        problem("often", [RIGHT, RIGHT, RIGHT, "1"]),
        problem("greedy saves it", [RIGHT] * 4),
    ]
    theirs = [
        problem("once", ["5", "6", "6.0", None], greedy="5"),
        problem("often", [None, "4"]),
        problem("greedy saves it", ["1"] * 4, greedy=RIGHT),
    ]
    found = compare(ours, theirs)
    assert [item.prompt_id for item in found.only_a] == ["often", "once"]
    often, once = found.only_a
    assert (once.num_right, once.num_samples, once.num_samples_other) == (1, 4, 4)
    assert (once.right_text, once.wrong_text) == (f"says {RIGHT}", "says 5")
    assert often.wrong_text == "says 4"


def test_fewer_samples_in_one_run_bound_k():
    ours = [problem(str(i), [RIGHT, "1", "1", "1"]) for i in range(4)]
    theirs = [problem(str(i), [RIGHT, "1"]) for i in range(4)]
    found = compare(ours, theirs)
    assert {n for n in found.differences if n.startswith("pass@")} == {"pass@1", "pass@2"}
    assert any(item.measure == "pass@k for k > 2" for item in found.left_out)


def runs(num_problems: int = 40):
    """Two runs: b is right more often; in both, diverse problems are solved more often."""
    rng = np.random.default_rng(4)
    spread = rng.random(num_problems)
    sides = []
    for bonus in (0.0, 0.3):
        side = []
        for i, s in enumerate(spread):
            hits = rng.random(4) < 0.1 + 0.5 * s + bonus
            vectors = np.array([1, 0], np.float32) + s * rng.normal(size=(4, 2)).astype(np.float32)
            answers = [RIGHT if hit else "1" for hit in hits]
            side.append(problem(str(i), answers, greedy=answers[0], embeddings=vectors))
        sides.append(side)
    return sides


def test_differences_and_correlations():
    ours, theirs = runs()
    found = compare(ours, theirs)
    for d in found.differences.values():
        assert d.difference == pytest.approx(d.b - d.a) and d.low <= d.difference <= d.high
    assert found.differences["pass@1"].p_value < 0.01 < 0.05 < found.differences["length"].p_value
    diversity = found.diversity_and_pass["a"][2]
    assert 0.0 < diversity.low < diversity.value < diversity.high and diversity.num_problems == 40
    assert set(found.diversity_and_pass["difference"]) == {1, 2, 4}
    bare = [replace(p, embeddings=None) for p in ours]
    without = compare(bare, theirs)
    assert "diversity" not in without.differences and without.diversity_and_pass["a"] == {}
    assert {"diversity", "correlation of diversity and pass@k in a, k = [1, 2, 4]"} <= {
        item.measure for item in without.left_out
    }


def test_spearman_is_scipys_and_covers():
    rng = np.random.default_rng(1)
    x = rng.integers(0, 5, 60)
    y = x + rng.integers(0, 5, 60)
    found = spearman_interval(x, y, seed=0)
    assert found.value == pytest.approx(spearmanr(x, y)[0])
    assert found.low < found.value < found.high
    assert spearman_interval(x, np.ones(60), seed=0) is None
    assert spearman_interval([1, 2, 3], [1, 2, 4], seed=0) is None
    hits = [
        i.low <= 0.0 <= i.high
        for i in (
            spearman_interval(*rng.normal(size=(2, 50)), seed=s, num_resamples=400)
            for s in range(300)
        )
    ]
    assert np.mean(hits) == pytest.approx(0.95, abs=0.02 + 2 * np.sqrt(0.05 * 0.95 / 300))


def test_job_reads_folders_and_writes_a_file(tmp_path: Path):
    for name, problems, temperature in zip("ab", runs(), (1.0, 0.7), strict=True):
        results = measure_evaluation(
            {"heldout": problems},
            model=f"model {name}",
            created="2026-01-01T00:00:00+00:00",
            sampling=replace(SAMPLING, temperature=temperature),
        )
        save_results(tmp_path / name / "results.json", results)
        save_problems(tmp_path / name / "heldout" / "samples.parquet", problems)
    out = tmp_path / "compare.json"
    command = [sys.executable, "jobs/compare.py", *(str(tmp_path / n) for n in "ab")]
    done = subprocess.run(
        [*command, "--out", str(out)], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "heldout: 40 problems in both\n" in done.stdout
    assert "sampled differently: temperature is 1.0 in a, 0.7 in b" in done.stdout
    assert "(model a)" in done.stdout and str(out) in done.stdout
    found = compare_folders(tmp_path / "a", tmp_path / "b")
    assert TypeAdapter(Comparison).validate_json(out.read_bytes()) == found
    save_comparison(tmp_path / "again.json", found)
    assert (tmp_path / "again.json").read_bytes() == out.read_bytes()
    assert set(json.loads(out.read_text())) == {
        *("schema_version", "run_a", "run_b", "level", "num_resamples", "seed"),
        *("sets", "sets_only_a", "sets_only_b", "notes"),
    }
    done = subprocess.run(
        [*command[:3], str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1 and "has no results.json; expected" in done.stderr
