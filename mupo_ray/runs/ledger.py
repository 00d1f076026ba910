"""What was trained on, step by step: the record that makes a resume checkable.

    ledger/steps.jsonl    one line a step: {"step", "policy_version", "positions", "prompt_ids"}

Append-only but for a resume, which cuts the lines of steps that are done again.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """One trained step."""

    step: int
    policy_version: int
    """Version that sampled the step's responses."""
    positions: list[int]
    """Positions in the sequence of prompts, over all ranks, ascending."""
    prompt_ids: list[str]
    """Ids of the prompts at those positions."""


class Ledger:
    """Written by rank 0."""

    def __init__(self, folder: Path, *, next_step: int) -> None:
        """Open the ledger; entries of `next_step` and later are cut.

        Args:
            folder: `<run>/ledger`.
            next_step: step that the run does next.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "steps.jsonl"
        kept = [e for e in read_ledger(folder) if e.step < next_step]
        draft = self._path.with_suffix(".draft")
        draft.write_text("".join(_line(e) for e in kept))
        draft.replace(self._path)

    def append(self, entry: LedgerEntry) -> None:
        """Add one step."""
        with self._path.open("a") as file:
            file.write(_line(entry))


def read_ledger(folder: Path) -> list[LedgerEntry]:
    """All entries; a last line that was cut short by a kill is left out."""
    path = folder / "steps.jsonl"
    if not path.exists():
        return []
    lines = path.read_text().splitlines(keepends=True)
    return [LedgerEntry(**json.loads(line)) for line in lines if line.endswith("\n")]


def _line(entry: LedgerEntry) -> str:
    return json.dumps(asdict(entry)) + "\n"
