"""One part of a source as rows of our table, or as reasons why not."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from mupo_ray.data.images import read_image
from mupo_ray.data.render import PromptRenderer, RenderPlan, check_texts
from mupo_ray.data.table import DropReason, ImageRef, Row, RowError, naming, prompt_id
from mupo_ray.prepare.column_maps import ColumnMap
from mupo_ray.prepare.columns import MappedRow, map_row
from mupo_ray.prepare.contamination import ContaminationIndex, Evidence, Fingerprint, fingerprint
from mupo_ray.prepare.image_store import Picture, PictureReader, store_picture
from mupo_ray.prepare.sources import Part, RawRow, Source

OWN_COLUMNS = ("prompt_id", "problem", "images", "answer", "options", "category", "source")
"""Columns of a prepared table, in front of those that travel along."""

# Names that mean something to whoever reads the table.
_RESERVED = {*OWN_COLUMNS, "image"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlan:
    """All that preparing a row depends on; travels to other processes."""

    source: Source
    columns: ColumnMap
    passed: tuple[str, ...]
    image_root: str | None
    """Folder that image paths start from; the file's own where None."""
    folder: str
    """Where the table is being written."""
    remove_contaminated: bool
    render: RenderPlan | None
    """Where given, prompts over its limit are dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """A row that was left out."""

    row: int
    row_id: str
    where: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Contaminated:
    """A row that occurs in an evaluation set."""

    row: int
    row_id: str
    evidence: Evidence


@dataclass(slots=True, kw_only=True)
class PartResult:
    """What became of a part's rows."""

    num_rows: int = 0
    num_text_only: int = 0
    kept: list[dict[str, object]] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    """Number in the source of each kept row."""
    drops: list[Drop] = field(default_factory=list)
    contaminated: list[Contaminated] = field(default_factory=list)


def table_schema(passed: tuple[str, ...]) -> pa.Schema:
    """Columns of the prepared table."""
    images = pa.list_(pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    own = [(name, images if name == "images" else pa.string()) for name in OWN_COLUMNS]
    return pa.schema([*own, *((passed_name(name), pa.string()) for name in passed)])


def passed_name(name: str) -> str:
    """Name under which a column travels along."""
    return f"raw_{name}" if name in _RESERVED else name


class RowPreparer:
    """Prepares parts; one a process, since it remembers pictures."""

    def __init__(self, plan: RowPlan, index: ContaminationIndex | None) -> None:
        self._plan = plan
        self._index = index
        self._reader = PictureReader(with_hashes=index is not None)
        self._renderer = None if plan.render is None else PromptRenderer(plan.render)

    def prepare(self, part: Part) -> PartResult:
        """Prepare the rows of a part and store their pictures.

        Raises:
            DataError: the file cannot be read any more.
        """
        result = PartResult()
        for raw in self._plan.source.read(part):
            result.num_rows += 1
            row_id = ""
            try:
                if raw.error is not None:
                    raise raw.error
                row = map_row(raw.cells, self._plan.columns, self._plan.passed)
                row_id = row.row_id
                self._add(raw, row, result)
            except RowError as err:
                # A reference that cannot be resolved still has the row's other cells.
                row_id = row_id or _id_of(raw, self._plan.columns)
                result.drops.append(
                    Drop(
                        row=raw.index,
                        row_id=_printable(row_id),
                        where=raw.where,
                        reason=err.reason,
                        message=_printable(str(err)),
                    )
                )
        return result

    def _add(self, raw: RawRow, row: MappedRow, result: PartResult) -> None:
        check_texts(row.problem, row.question, row.answer, len(row.images))
        encoded, pictures = read_pictures(row, self._plan.image_root or raw.folder, self._reader)
        if self._renderer is not None:
            self._renderer.render(_rendered(raw, row, encoded), position=0)
        evidence = self._index and self._index.find(row_fingerprint(row, pictures))
        if evidence:
            result.contaminated.append(
                Contaminated(row=raw.index, row_id=row.row_id, evidence=evidence)
            )
            if self._plan.remove_contaminated:
                raise RowError(
                    DropReason.CONTAMINATED,
                    f"{evidence.kind}: {evidence.detail} as row {evidence.row} of "
                    f"{evidence.set_name}",
                )
        for picture, content in zip(pictures, encoded, strict=True):
            store_picture(Path(self._plan.folder), picture, content)
        result.num_text_only += not pictures
        result.rows.append(raw.index)
        result.kept.append(
            {
                "prompt_id": prompt_id(row.problem, row.answer, [p.sha256 for p in pictures]),
                "problem": row.problem,
                "images": [{"bytes": None, "path": p.path} for p in pictures],
                "answer": row.answer,
                "options": json.dumps(row.options, ensure_ascii=False) if row.options else None,
                "category": row.category,
                "source": row.source,
                **{passed_name(name): text for name, text in row.passed.items()},
            }
        )


def read_pictures(
    row: MappedRow, folder: str, reader: PictureReader
) -> tuple[list[bytes], list[Picture]]:
    """A row's pictures, encoded and inspected.

    Raises:
        RowError: one of them cannot be used; its number is named.
    """
    encoded: list[bytes] = []
    pictures: list[Picture] = []
    for number, ref in enumerate(row.images):
        with naming(f"image {number}"):
            encoded.append(read_image(ref, folder))
            pictures.append(reader.inspect(encoded[-1]))
    return encoded, pictures


def row_fingerprint(row: MappedRow, pictures: list[Picture]) -> Fingerprint:
    """What a row is recognised by."""
    hashes = [(p.sha256, p.print) for p in pictures if p.print is not None]
    return fingerprint(row.question, row.answer, row.options, hashes)


def _rendered(raw: RawRow, row: MappedRow, encoded: list[bytes]) -> Row:
    return Row(
        index=raw.index,
        problem=row.problem,
        answer=row.answer,
        images=tuple(ImageRef(encoded=content) for content in encoded),
        folder="",
        meta={},
    )


def _id_of(raw: RawRow, columns: ColumnMap) -> str:
    return next((str(raw.cells[n]) for n in columns.id if raw.cells.get(n) is not None), "")


def _printable(text: str) -> str:
    """Text that a report can be written with, whatever the row held."""
    return text.encode("utf-8", "backslashreplace").decode()
