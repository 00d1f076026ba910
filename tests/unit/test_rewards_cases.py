"""Answers and golds as they came up in the field, by the ids of the collection they stem from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mupo_ray.rewards.grader import Grader
from mupo_ray.rewards.judge import judge

_CASES = [
    json.loads(line)
    for line in (Path(__file__).parent / "data" / "reward_cases.jsonl").read_text().splitlines()
]


@pytest.fixture(scope="module")
def patient() -> Iterator[Grader]:
    """A limit that a busy machine does not reach."""
    with Grader(num_workers=1, limit_s=60.0) as grader:
        yield grader


@pytest.mark.parametrize(
    "case", _CASES, ids=[f"{case['id']}-{case['what'].replace(' ', '_')}" for case in _CASES]
)
def test_field_case(case: dict[str, Any], patient: Grader) -> None:
    never_ends = case["id"] == "a23"
    with ThreadPoolExecutor(1) as thread:  # Graders that use signals fail off the main thread.
        verdict = thread.submit(
            judge,
            case["text"],
            case["gold"],
            is_think_opened=case.get("think_opened", False),
            grader=None if never_ends else patient,
        ).result(timeout=180)
    assert verdict.extracted == case["extracted"]
    assert verdict.is_correct is case["correct"], verdict.reason
    assert verdict.reason != "unparsable"
    assert (verdict.reason == "timeout") is never_ends
    if "format" in case:
        assert bool(verdict.format) is case["format"]
