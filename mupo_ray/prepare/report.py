"""What became of each row of a source: counted, listed, printed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from mupo_ray.prepare.eval_sets import EvalSet
from mupo_ray.prepare.rows import Contaminated, Drop, PartResult

# Messages kept of each reason; the numbers of the rows are all kept.
_MAX_MESSAGES = 1000
_PRINTED_MESSAGES = 10
_PRINTED_NUMBERS = 20


@dataclass(slots=True, kw_only=True)
class PrepareReport:
    """The count of a preparation; it depends on its input alone, not on time or place."""

    source: str
    mapping: dict[str, list[str]]
    """What each column was taken for."""
    passed: list[str]
    """Columns that travelled along."""
    against: list[EvalSet] = field(default_factory=list)
    on_contamination: str = "remove"
    rows_in: int = 0
    rows_kept: int = 0
    rows_text_only: int = 0
    """Kept rows without a picture."""
    images_stored: int = 0
    repeated: list[int] = field(default_factory=list)
    """Kept rows that have the content of an earlier one."""
    drops: dict[str, list[Drop]] = field(default_factory=dict)
    dropped_rows: dict[str, list[int]] = field(default_factory=dict)
    contaminated: list[Contaminated] = field(default_factory=list)
    _seen: set[int] = field(default_factory=set, repr=False)

    @property
    def rows_dropped(self) -> int:
        """Rows left out, whatever the reason."""
        return self.rows_in - self.rows_kept

    def add(self, result: PartResult) -> None:
        """Count the next part."""
        self.rows_in += result.num_rows
        self.rows_kept += len(result.kept)
        self.rows_text_only += result.num_text_only
        self.contaminated += result.contaminated
        for drop in result.drops:
            self.dropped_rows.setdefault(drop.reason, []).append(drop.row)
            drops = self.drops.setdefault(drop.reason, [])
            if len(drops) < _MAX_MESSAGES:
                drops.append(drop)
        for row, cells in zip(result.rows, result.kept, strict=True):
            identity = int(str(cells["prompt_id"]), 16)
            if identity in self._seen:
                self.repeated.append(row)
            self._seen.add(identity)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, in the order of `report.json`."""
        return {
            "source": self.source,
            "mapping": self.mapping,
            "passed_columns": self.passed,
            "rows_in": self.rows_in,
            "rows_kept": self.rows_kept,
            "rows_dropped": self.rows_dropped,
            "rows_text_only": self.rows_text_only,
            "images_stored": self.images_stored,
            "repeated_rows": self.repeated,
            "dropped": {
                reason: {
                    "count": len(self.dropped_rows[reason]),
                    "rows": self.dropped_rows[reason],
                    "messages": [_plain(drop) for drop in self.drops[reason]],
                }
                for reason in sorted(self.drops)
            },
            "contamination": {
                "on_contamination": self.on_contamination,
                "against": [asdict(eval_set) for eval_set in self.against],
                "rows": [
                    {"row": c.row, "id": c.row_id, **c.evidence.as_dict()}
                    for c in self.contaminated
                ],
            },
        }

    def text(self) -> str:
        """A few lines for a terminal."""
        lines = [
            f"rows in    {self.rows_in}",
            f"kept       {self.rows_kept} ({self.rows_text_only} without a picture)",
            f"dropped    {self.rows_dropped}",
        ]
        for reason, rows in sorted(self.dropped_rows.items()):
            lines.append(f"  {reason:<17} {len(rows):>6}  rows {_numbers(rows)}")
        if self.repeated:
            lines.append(f"repeated   {len(self.repeated)} (kept), rows {_numbers(self.repeated)}")
        lines.append(f"pictures   {self.images_stored}")
        for eval_set in self.against:
            count = sum(c.evidence.set_name == eval_set.name for c in self.contaminated)
            verb = "removed" if self.on_contamination == "remove" else "reported"
            lines.append(f"{count} rows {verb} that are in {eval_set.name}")
        return "\n".join(lines)

    def first_messages(self) -> str:
        """Why the first rows were dropped, one a line."""
        drops = sorted((d for of in self.drops.values() for d in of), key=lambda drop: drop.row)
        lines = [_sentence(drop) for drop in drops[:_PRINTED_MESSAGES]]
        if self.rows_dropped > len(lines):
            lines.append(f"... and {self.rows_dropped - len(lines)} more")
        return "\n".join(lines)


def _plain(drop: Drop) -> dict[str, object]:
    return {"row": drop.row, "id": drop.row_id, "where": drop.where, "message": drop.message}


def _sentence(drop: Drop) -> str:
    place = (
        f"row {drop.row}" if drop.where == f"row {drop.row}" else f"row {drop.row}, {drop.where}"
    )
    name = f", id {drop.row_id[:80]}" if drop.row_id else ""
    return f"{place}{name} ({drop.reason}): {drop.message}"


def _numbers(rows: list[int]) -> str:
    more = ", ..." if len(rows) > _PRINTED_NUMBERS else ""
    return ", ".join(map(str, rows[:_PRINTED_NUMBERS])) + more
