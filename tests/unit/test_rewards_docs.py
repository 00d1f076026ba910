"""Every row of the tables in docs/rewards.md is true."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from mupo_ray.rewards.algebra_pool import AlgebraPool
from mupo_ray.rewards.extract import opens_think
from mupo_ray.rewards.verdicts import verdict_of
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
def pool() -> Iterator[AlgebraPool]:
    with AlgebraPool(num_workers=1, limit_s=30.0) as pool:
        pool.compare("2x", "x+x", 120.0)
        yield pool


@pytest.mark.parametrize(
    "row", ANSWERS, ids=[f"{row['answer']}={row['gold']}".replace(" ", "_") for row in ANSWERS]
)
def test_answers(row: dict[str, str], pool: AlgebraPool) -> None:
    if row["verdict"] == "timeout":
        with AlgebraPool(num_workers=1, limit_s=2.0) as impatient:
            assert reason_of(row, impatient) is Reason.TIMEOUT
        return
    assert reason_of(row, pool) == row["verdict"]


def reason_of(row: dict[str, str], pool: AlgebraPool) -> Reason:
    return verdict_of(
        f"<think>a</think>\\boxed{{{row['answer']}}}",
        row["gold"],
        options=OPTIONS if row.get("options", "no") == "yes" else None,
        algebra_pool=pool,
    ).reason


@pytest.mark.parametrize("row", RESPONSES, ids=[row["response"] for row in RESPONSES])
def test_responses(row: dict[str, str], pool: AlgebraPool) -> None:
    verdict = verdict_of(row["response"], row["gold"] or None, algebra_pool=pool)
    assert (verdict.extracted or "") == row["extracted"]
    assert verdict.reason == row["verdict"]


@pytest.mark.parametrize("row", FORMATS, ids=[row["response"] for row in FORMATS])
def test_formats(row: dict[str, str], pool: AlgebraPool) -> None:
    opened = opens_think(row["prompt ends with"])
    verdict = verdict_of(row["response"], "5", is_think_opened=opened, algebra_pool=pool)
    assert verdict.format == float(row["format"])


def test_every_reason_is_explained() -> None:
    explained = {row["reason"] for row in ROWS if "reason" in row}
    assert explained == set(Reason)
    assert len(ANSWERS) > 100
    assert len(RESPONSES) == 10
    assert len(FORMATS) == 8
