"""Answers as they came up in the field and pairs of our own, graded as people grade: by the job."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from mupo_ray.rewards.algebra_pool import AlgebraPool
from mupo_ray.rewards.verdicts import verdicts_of

DATA = Path(__file__).parent / "data"
JOB = Path(__file__).resolve().parents[2] / "jobs" / "grade.py"


def rows_of(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / name).read_text().splitlines()]


CASES = rows_of("reward_cases.jsonl")
PAIRS = rows_of("reward_pairs.jsonl")
NEVER_ENDS = "a23"


def run_job(rows: list[dict[str, Any]], folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """Rows through `jobs/grade.py`."""
    spec = importlib.util.spec_from_file_location("grade_job", JOB)
    assert spec is not None
    assert spec.loader is not None
    job = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(job)
    source, target = folder / "in.jsonl", folder / "out.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert job.main(["--input", str(source), "--output", str(target), *arguments]) == 0
    return [json.loads(line) for line in target.read_text().splitlines()]


@pytest.fixture(scope="module")
def graded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Every field case with its verdict, by id."""
    rows = [
        {"id": case["id"], "response": case["text"], "gold": case["gold"]}
        | {name: case[name] for name in ("options", "prompt_suffix") if name in case}
        for case in CASES
    ]
    rows_graded = run_job(
        rows, tmp_path_factory.mktemp("cases"), "--workers", "2", "--limit-s", "8"
    )
    assert [row["id"] for row in rows_graded] == [case["id"] for case in CASES]
    return {row["id"]: row for row in rows_graded}


@pytest.mark.parametrize(
    "case", CASES, ids=[f"{case['id']}-{case['what'].replace(' ', '_')}" for case in CASES]
)
def test_field_case(case: dict[str, Any], graded: dict[str, dict[str, Any]]) -> None:
    verdict = graded[case["id"]]
    assert verdict["extracted"] == case["extracted"]
    assert verdict["accuracy"] == float(case["correct"]), verdict["reason"]
    assert verdict["reason"] != "unparsable"
    assert (verdict["reason"] == "timeout") is (case["id"] == NEVER_ENDS)
    if "format" in case:
        assert bool(verdict["format"]) is case["format"]


def test_table_of_field_cases(graded: dict[str, dict[str, Any]]) -> None:
    """Ours beside what two libraries say of the same answers, whole response / answer alone."""
    print(f"\n{'case':<44} {'ours':>6} {'math-verify':>12} {'mathruler':>12}")
    right = {"ours": 0, "math_verify": 0, "mathruler": 0}
    for case in CASES:
        marks = {"ours": _mark(graded[case["id"]]["accuracy"] == float(case["correct"]))}
        right["ours"] += marks["ours"] == "+"
        for library in ("math_verify", "mathruler"):
            whole, alone = (said is case["correct"] for said in case[library])
            marks[library] = f"{_mark(whole)} / {_mark(alone)}"
            right[library] += whole
        print(
            f"{case['id']} {case['what']:<40} {marks['ours']:>6} {marks['math_verify']:>12} "
            f"{marks['mathruler']:>12}"
        )
    print(f"right, whole response: {right} of {len(CASES)}")
    assert right["ours"] == len(CASES)
    assert max(right["math_verify"], right["mathruler"]) < len(CASES)


def _mark(is_right: bool) -> str:
    return "+" if is_right else "-"


# -- pairs of our own ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def verdicts() -> list[tuple[dict[str, Any], bool, str]]:
    """Every pair with its verdict, under a limit that a busy machine does not reach."""
    texts = [f"<think>work</think>\\boxed{{{pair['answer']}}}" for pair in PAIRS]
    with AlgebraPool(num_workers=2, limit_s=60.0) as pool:
        verdicts = verdicts_of(
            texts,
            [pair["gold"] for pair in PAIRS],
            [pair.get("options") for pair in PAIRS],
            algebra_pool=pool,
        )
    return [
        (pair, verdict.is_correct, str(verdict.reason))
        for pair, verdict in zip(PAIRS, verdicts, strict=True)
    ]


@pytest.mark.parametrize("kind", sorted({pair["kind"] for pair in PAIRS}))
def test_pairs_of_each_kind(kind: str, verdicts: list[tuple[dict[str, Any], bool, str]]) -> None:
    chosen = [row for row in verdicts if row[0]["kind"] == kind]
    wrong = [
        f"{pair['answer']!r} against {pair['gold']!r}: {reason}"
        for pair, is_correct, reason in chosen
        if is_correct is not pair["equal"]
    ]
    assert not wrong, "\n".join(wrong)
    assert {pair["equal"] for pair, _, _ in chosen} == {True, False}, "both kinds of pair are due"
    assert all(reason != "timeout" for _, _, reason in chosen)
