"""Rows of whatever people have, in parts that any process can read on its own.

    spec --find_source_files--> files --open_source--> Source: columns, number of rows, parts
                                                          |
                                             any process: read(part) --> RawRow, RawRow, ...

Opening reads text files once, to find where rows begin and which columns there are; of Parquet and
Arrow files it reads the metadata alone. No more than a few rows are in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mupo_ray.data.table import DropReason, RowError
from mupo_ray.errors import DataError
from mupo_ray.prepare.source_files import FileKind, find_source_files
from mupo_ray.prepare.source_json import json_to_jsonl
from mupo_ray.prepare.source_text import (
    MAX_REFERENCE_CHARS,
    Located,
    check_last_quote,
    read_jsonl,
    read_tsv,
    read_tsv_header,
)

PART_ROWS = 128
"""Rows that one task prepares."""

_PART_BYTES = 16 * 2**20
_BATCH_ROWS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRow:
    """One row as its file has it."""

    index: int
    """Number of the row in the whole source, from 0."""
    where: str
    """The place in words, for reports."""
    cells: dict[str, Any]
    folder: str
    """Folder of the row's file."""
    error: RowError | None = None
    """Why there are no cells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Neighbouring rows of one file."""

    file: str
    kind: FileKind
    first_row: int
    num_rows: int
    start: int
    """Where it begins: a byte of a text file, a row group, or a record batch."""
    stop: int
    """Where the next part begins."""
    line: int = 0
    """First line in a text file."""
    folder: str = ""


@dataclass(frozen=True, kw_only=True)
class Source:
    """The outline of a source; small, holds no rows, safe to send to other processes."""

    spec: str
    columns: tuple[str, ...]
    num_rows: int
    parts: tuple[Part, ...]
    image_cells: dict[str, tuple[str, int, int]] = field(default_factory=dict, repr=False)
    """Index of a TSV row that others refer to -> its file, byte and line."""

    def read(self, part: Part) -> Iterator[RawRow]:
        """Rows of a part, in order.

        Raises:
            DataError: the file has vanished or cannot be read any more.
        """
        try:
            if part.kind in (FileKind.PARQUET, FileKind.ARROW):
                yield from _read_columns(part)
            else:
                yield from self._read_text(part)
        except (OSError, pa.ArrowException) as err:
            raise DataError(f"cannot read {part.file}: {_first_line(err)}") from err

    def _read_text(self, part: Part) -> Iterator[RawRow]:
        rows: Iterator[Located]
        if part.kind is FileKind.TSV:
            header = read_tsv_header(Path(part.file))[0]
            rows = read_tsv(Path(part.file), header, part.start, part.line)
        else:
            rows = read_jsonl(Path(part.file), part.start, part.line)
        for number, row in enumerate(islice(rows, part.num_rows), part.first_row):
            where = f"line {row.line}"
            cells: dict[str, Any] = {}
            error = row.content if isinstance(row.content, RowError) else None
            if not isinstance(row.content, RowError):
                cells = row.content
                if part.kind is FileKind.TSV:
                    try:
                        cells = self._with_image(cells)
                    except RowError as err:
                        error = err
            yield RawRow(index=number, where=where, cells=cells, folder=part.folder, error=error)

    def _with_image(self, cells: dict[str, Any]) -> dict[str, Any]:
        """The cells with a short image cell replaced by the image of the row that it names."""
        index = cells.get("image")
        if not index or "index" not in cells or len(index) > MAX_REFERENCE_CHARS:
            return cells
        place = self.image_cells.get(index)
        image = None if place is None else _image_cell(*place)
        if image is None or len(image) <= MAX_REFERENCE_CHARS:
            what = "there is no such row" if place is None else "that row has no picture itself"
            raise RowError(
                DropReason.MISSING_IMAGE,
                f"image refers to index {index!r}, but {what}; paths of files belong in image_path",
            )
        return {**cells, "image": image}


def open_source(spec: str, spool: Path) -> Source:
    """Find a source's files, its columns and where its rows lie.

    Args:
        spec: as `find_source_files` takes it.
        spool: existing folder for what a JSON file is turned into; needed while parts are read.

    Raises:
        DataError: no such source, a file that cannot be read at all, or no rows.
    """
    files = find_source_files(spec)
    outline = _Outline()
    for number, path in enumerate(files.paths):
        try:
            if files.kind is FileKind.PARQUET:
                outline.add_parquet(path)
            elif files.kind is FileKind.ARROW:
                outline.add_arrow(path)
            elif files.kind is FileKind.TSV:
                outline.add_tsv(path)
            else:
                rows = path
                if files.kind is FileKind.JSON:
                    lines = spool / f"{number:05d}.jsonl"
                    rows = lines if json_to_jsonl(path, lines) else path
                outline.add_jsonl(rows, folder=path.parent)
        except (OSError, pa.ArrowException) as err:
            raise DataError(f"cannot read {path} as {files.kind}: {_first_line(err)}") from err
    if outline.num_rows == 0:
        raise DataError(f"source {spec} has no rows; at least one is needed")
    return outline.source(spec)


class _Outline:
    """What `open_source` gathers, file by file."""

    def __init__(self) -> None:
        self.num_rows = 0
        self._columns: dict[str, None] = {}
        self._parts: list[Part] = []
        self._places: dict[str, tuple[str, int, int]] = {}
        self._wanted: set[str] = set()

    def source(self, spec: str) -> Source:
        return Source(
            spec=spec,
            columns=tuple(self._columns),
            num_rows=self.num_rows,
            parts=tuple(self._parts),
            image_cells={k: v for k, v in self._places.items() if k in self._wanted},
        )

    def add_parquet(self, path: Path) -> None:
        with pq.ParquetFile(path) as parquet:
            self._columns.update(dict.fromkeys(parquet.schema_arrow.names))
            for group in range(parquet.metadata.num_row_groups):
                rows = parquet.metadata.row_group(group).num_rows
                self._add(path, FileKind.PARQUET, rows, group, group + 1)

    def add_arrow(self, path: Path) -> None:
        with _arrow_batches(path) as batches:
            first = num = number = 0
            for number, batch in enumerate(batches):
                self._columns.update(dict.fromkeys(batch.schema.names))
                num += batch.num_rows
                if num >= PART_ROWS:
                    self._add(path, FileKind.ARROW, num, first, number + 1)
                    first, num = number + 1, 0
            self._add(path, FileKind.ARROW, num, first, number + 1)

    def add_jsonl(self, path: Path, folder: Path) -> None:
        self._add_lines(path, FileKind.JSONL, read_jsonl(path), folder)

    def add_tsv(self, path: Path) -> None:
        header, start, line = read_tsv_header(path)
        self._columns.update(dict.fromkeys(header))
        last = self._add_lines(path, FileKind.TSV, read_tsv(path, header, start, line), path.parent)
        check_last_quote(path, last)

    def _add_lines(
        self, path: Path, kind: FileKind, rows: Iterator[Located], folder: Path
    ) -> Located | None:
        part: list[int] = []
        row: Located | None = None
        for row in rows:
            if not part:
                part = [row.start, row.line, 0]
            part[2] += 1
            if not isinstance(row.content, RowError):
                self._columns.update(dict.fromkeys(row.content))
                if kind is FileKind.TSV:
                    self._note_index(path, row, row.content)
            if part[2] == PART_ROWS or row.stop - part[0] > _PART_BYTES:
                self._add(path, kind, part[2], part[0], row.stop, line=part[1], folder=folder)
                part = []
        if part and row is not None:
            self._add(path, kind, part[2], part[0], row.stop, line=part[1], folder=folder)
        return row

    def _note_index(self, path: Path, row: Located, cells: dict[str, Any]) -> None:
        image, index = cells.get("image"), cells.get("index")
        if image and len(image) <= MAX_REFERENCE_CHARS:
            self._wanted.add(image)
        if index:
            self._places.setdefault(index, (str(path.absolute()), row.start, row.line))

    def _add(
        self,
        path: Path,
        kind: FileKind,
        rows: int,
        start: int,
        stop: int,
        line: int = 0,
        folder: Path | None = None,
    ) -> None:
        if rows == 0:
            return
        self._parts.append(
            Part(
                file=str(path.absolute()),
                kind=kind,
                first_row=self.num_rows,
                num_rows=rows,
                start=start,
                stop=stop,
                line=line,
                folder=str((folder or path.parent).absolute()),
            )
        )
        self.num_rows += rows


def _read_columns(part: Part) -> Iterator[RawRow]:
    number = part.first_row
    for batch in _batches(part):
        # Row by row: a batch's pictures as Python objects would be a second copy of them all.
        for i in range(batch.num_rows):
            (cells,) = batch.slice(i, 1).to_pylist()
            yield RawRow(
                index=number, where=f"row {number}", cells=cells, folder=part.folder, error=None
            )
            number += 1


def _batches(part: Part) -> Iterator[pa.RecordBatch]:
    if part.kind is FileKind.ARROW:
        with _arrow_batches(Path(part.file)) as batches:
            yield from islice(batches, part.start, part.stop)
        return
    # Read page by page: a row group may be hundreds of megabytes.
    with pq.ParquetFile(part.file, buffer_size=2**20, pre_buffer=False) as parquet:
        yield from parquet.iter_batches(
            _BATCH_ROWS, row_groups=range(part.start, part.stop), use_threads=False
        )


@contextmanager
def _arrow_batches(path: Path) -> Iterator[Iterator[pa.RecordBatch]]:
    with pa.memory_map(str(path)) as mapped:
        try:
            reader: Any = pa.ipc.open_stream(mapped)
        except pa.ArrowInvalid:
            reader = pa.ipc.open_file(mapped)
            yield (reader.get_batch(i) for i in range(reader.num_record_batches))
        else:
            yield iter(reader)


@lru_cache(maxsize=8)
def _image_cell(file: str, start: int, line: int) -> str | None:
    """The image cell of one row of a TSV; several rows that refer to it tend to be neighbours."""
    header = read_tsv_header(Path(file))[0]
    for row in read_tsv(Path(file), header, start, line):
        return None if isinstance(row.content, RowError) else row.content.get("image")
    return None


def _first_line(err: BaseException) -> str:
    return (str(err).splitlines() or [type(err).__name__])[0]
