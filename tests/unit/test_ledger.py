"""The ledger of trained steps: append, resume, a line cut short."""

from __future__ import annotations

from pathlib import Path

from mupo_ray.runs.ledger import Ledger, LedgerEntry, read_ledger


def entry(step: int) -> LedgerEntry:
    return LedgerEntry(
        step=step,
        policy_version=step,
        positions=[2 * step, 2 * step + 1],
        prompt_ids=[f"p{2 * step}", f"p{2 * step + 1}"],
    )


def fill(folder: Path, steps: range) -> None:
    ledger = Ledger(folder, next_step=steps.start)
    for step in steps:
        ledger.append(entry(step))


def test_no_ledger_has_no_entries(tmp_path: Path) -> None:
    assert read_ledger(tmp_path / "none") == []


def test_entries_come_back_in_order(tmp_path: Path) -> None:
    fill(tmp_path, range(3))
    assert read_ledger(tmp_path) == [entry(0), entry(1), entry(2)]
    assert (tmp_path / "steps.jsonl").read_text().splitlines()[1] == (
        '{"step": 1, "policy_version": 1, "positions": [2, 3], "prompt_ids": ["p2", "p3"]}'
    )


def test_a_resume_cuts_the_steps_that_are_done_again(tmp_path: Path) -> None:
    fill(tmp_path, range(5))
    fill(tmp_path, range(2, 4))
    assert [e.step for e in read_ledger(tmp_path)] == [0, 1, 2, 3]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["steps.jsonl"]


def test_a_line_cut_short_is_left_out_and_does_not_spoil_the_next(tmp_path: Path) -> None:
    fill(tmp_path, range(2))
    with (tmp_path / "steps.jsonl").open("a") as file:
        file.write('{"step": 2, "policy_ver')
    assert [e.step for e in read_ledger(tmp_path)] == [0, 1]
    fill(tmp_path, range(2, 3))
    assert [e.step for e in read_ledger(tmp_path)] == [0, 1, 2]
