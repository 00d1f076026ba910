"""Evaluation sets as fingerprints, to search training rows for."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mupo_ray.data.table import RowError
from mupo_ray.errors import DataError
from mupo_ray.prepare.column_maps import MAPPINGS, passed_columns, resolve_columns
from mupo_ray.prepare.columns import map_row
from mupo_ray.prepare.contamination import ContaminationIndex, EvalRow
from mupo_ray.prepare.image_store import Picture, PictureReader
from mupo_ray.prepare.rows import read_pictures, row_fingerprint
from mupo_ray.prepare.sources import open_source

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSet:
    """What one evaluation set holds."""

    name: str
    num_rows: int
    num_pictures: int
    unreadable: dict[str, int]
    """Reason -> rows that are searched for by their question alone, or not at all."""


def load_eval_sets(specs: Sequence[str], spool: Path) -> tuple[ContaminationIndex, list[EvalSet]]:
    """Read evaluation sets; 5 KB of each of their pictures stay in memory, 64 KB on disk.

    Args:
        specs: sources, with the name of a ready mapping and an equals sign in front where the
            generic one does not fit: `mathvista=copies/MathVista@testmini`.
        spool: existing folder for intermediate files.

    Raises:
        DataError: a set cannot be read, or nothing of it can.
    """
    index = ContaminationIndex(spool / "pictures")
    sets: list[EvalSet] = []
    for number, spec in enumerate(specs):
        folder = spool / f"against-{number}"
        folder.mkdir()
        sets.append(_load(spec, folder, index))
    return index, sets


def _load(spec: str, spool: Path, index: ContaminationIndex) -> EvalSet:
    name, equals, path = spec.partition("=")
    if not equals or name not in MAPPINGS:
        name, path = "generic", spec
    source = open_source(path, spool)
    columns = resolve_columns(name, (), source.columns, required=("problem",))
    passed = passed_columns(source.columns, columns)
    unreadable: Counter[str] = Counter()
    num_read = num_pictures = 0

    def rows() -> Iterator[EvalRow]:
        nonlocal num_read, num_pictures
        reader = PictureReader(with_hashes=True)
        for raw in (raw for part in source.parts for raw in source.read(part)):
            try:
                if raw.error is not None:
                    raise raw.error
                row = map_row(raw.cells, columns, passed)
            except RowError as err:
                unreadable[str(err.reason)] += 1
                continue
            pictures: list[Picture] = []
            try:
                _, pictures = read_pictures(row, raw.folder, reader)
            except RowError as err:
                unreadable[str(err.reason)] += 1
            num_read += 1
            num_pictures += len(pictures)
            yield EvalRow(set_name=path, row=raw.index, print=row_fingerprint(row, pictures))

    index.extend(rows())
    if num_read == 0:
        reasons = ", ".join(f"{reason}: {count}" for reason, count in sorted(unreadable.items()))
        raise DataError(
            f"evaluation set {spec}: none of its {source.num_rows} rows can be read ({reasons})"
        )
    if unreadable:
        logger.warning(
            "evaluation set %s: %d of %d rows cannot be read in full, so copies of them may stay",
            path,
            unreadable.total(),
            source.num_rows,
        )
    return EvalSet(
        name=path,
        num_rows=source.num_rows,
        num_pictures=num_pictures,
        unreadable=dict(sorted(unreadable.items())),
    )
