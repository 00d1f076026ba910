"""What was trained on, step by step: the record that makes a resume checkable.

    ledger/steps.jsonl    one line a step: {"step", "policy_version", "positions", "prompt_ids"}

Append-only but for a resume, which cuts the lines of steps that are done again.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from mupo_ray.files import read_jsonl, write_jsonl

if TYPE_CHECKING:
    from pathlib import Path

_FILE = "steps.jsonl"


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
        self._path = folder / _FILE
        write_jsonl(self._path, [asdict(e) for e in read_ledger(folder) if e.step < next_step])

    def append(self, entry: LedgerEntry) -> None:
        """Add one step."""
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(entry)) + "\n")


def read_ledger(folder: Path) -> list[LedgerEntry]:
    """All entries; a last line that was cut short by a kill is left out."""
    return [LedgerEntry(**row) for row in read_jsonl(folder / _FILE)]
