"""Every row of the tables in docs/rewards.md is true."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from mupo_ray.rewards.algebra_pool import Grader
from mupo_ray.rewards.extract import opens_think
from mupo_ray.rewards.judge import judge
from mupo_ray.types import Reason

DOC = Path(__file__).resolve().parents[2] / "docs" / "rewards.md"
OPTIONS = {"A": "red bus", "B": "12 cm", "C": "12 m", "D": "\\sqrt{8}"}


def tables() -> Iterator[dict[str, str]]:
    """Rows as header -> cell; backticks taken off."""
    header: list[str] = []
    for line in DOC.read_text(encoding="utf-8").splitlines():
        if not line.startswith("|"):
            header = []
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not header:
            header = cells
        elif not set(line) <= set("|- "):
            assert len(cells) == len(header), line
            yield {
                name: cell[1:-1] if re.fullmatch("`[^`]+`", cell) else cell
                for name, cell in zip(header, cells, strict=True)
            }


ROWS = list(tables())
ANSWERS = [row for row in ROWS if {"answer", "gold", "verdict"} <= set(row)]
RESPONSES = [row for row in ROWS if {"response", "gold", "extracted"} <= set(row)]
FORMATS = [row for row in ROWS if {"response", "format"} <= set(row)]


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    with Grader(num_workers=1, limit_s=30.0) as found:
        found.grade("2x", "x+x", 120.0)
        yield found


@pytest.mark.parametrize(
    "row", ANSWERS, ids=[f"{row['answer']}={row['gold']}".replace(" ", "_") for row in ANSWERS]
)
def test_answers(row: dict[str, str], grader: Grader) -> None:
    if row["verdict"] == "timeout":
        with Grader(num_workers=1, limit_s=2.0) as impatient:
            assert judge_row(row, impatient) is Reason.TIMEOUT
        return
    assert judge_row(row, grader) == row["verdict"]


def judge_row(row: dict[str, str], grader: Grader) -> Reason:
    return judge(
        f"<think>a</think>\\boxed{{{row['answer']}}}",
        row["gold"],
        options=OPTIONS if row.get("options", "no") == "yes" else None,
        grader=grader,
    ).reason


@pytest.mark.parametrize("row", RESPONSES, ids=[row["response"] for row in RESPONSES])
def test_responses(row: dict[str, str], grader: Grader) -> None:
    verdict = judge(row["response"], row["gold"] or None, grader=grader)
    assert (verdict.extracted or "") == row["extracted"]
    assert verdict.reason == row["verdict"]


@pytest.mark.parametrize("row", FORMATS, ids=[row["response"] for row in FORMATS])
def test_formats(row: dict[str, str], grader: Grader) -> None:
    opened = opens_think(row["prompt ends with"])
    verdict = judge(row["response"], "5", is_think_opened=opened, grader=grader)
    assert verdict.format == float(row["format"])


def test_every_reason_is_explained() -> None:
    explained = {row["reason"] for row in ROWS if "reason" in row}
    assert explained == set(Reason)
    assert len(ANSWERS) > 100
    assert len(RESPONSES) == 10
    assert len(FORMATS) == 8
