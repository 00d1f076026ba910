"""Answers and golds as they came up in the field, by the ids of the collection they stem from."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mupo_ray.rewards.judge import judge

_CASES = [
    json.loads(line)
    for line in (Path(__file__).parent / "data" / "reward_cases.jsonl").read_text().splitlines()
]


@pytest.mark.parametrize(
    "case", _CASES, ids=[f"{case['id']}-{case['what'].replace(' ', '_')}" for case in _CASES]
)
def test_field_case(case: dict[str, Any]) -> None:
    with ThreadPoolExecutor(1) as thread:  # Graders that use signals fail off the main thread.
        verdict = thread.submit(
            judge,
            case["text"],
            case["gold"],
            is_think_opened=case.get("think_opened", False),
        ).result(timeout=180)
    assert verdict.extracted == case["extracted"]
    assert verdict.is_correct is case["correct"], verdict.reason
    assert verdict.reason != "unparsable"
    assert (verdict.reason == "timeout") is (case["id"] == "a23")
    if "format" in case:
        assert bool(verdict.format) is case["format"]
