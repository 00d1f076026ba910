"""What a data file must look like, and random access to its rows.

A data set is one Parquet file, a folder of them, or a glob, with these columns:

    problem   string; `<image>` marks where each picture goes
    answer    string; the gold answer
    images    list<struct<bytes: binary, path: string>>; bytes win, a path is relative to the file's
              folder. Lists of strings (paths) or of binaries, single values instead of lists,
              and the name `image` are read as well. Absent for text-only data.

Every further string column travels along as `Prompt.meta`. Rows are numbered through all files in
the order of their names.
"""

from __future__ import annotations

import bisect
import glob
import hashlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from cachetools import LRUCache, cached

from mupo_ray.errors import DataError
from mupo_ray.text import first_line

logger = logging.getLogger(__name__)

_IMAGE_COLUMNS = ("images", "image")
# Decoded row groups that one process keeps: a shuffled epoch reads each of them many times.
_CACHE_BYTES = 64 * 2**20
# Above this a shuffled read, which needs the whole row group for one row, is slow.
_LARGE_ROW_GROUP_BYTES = 512 * 2**20


class DropReason(StrEnum):
    """Why a row cannot be trained on; each is counted apart."""

    BROKEN_IMAGE = "broken_image"
    MISSING_IMAGE = "missing_image"
    IMAGE_TOO_LARGE = "image_too_large"
    ASPECT_RATIO = "aspect_ratio"
    PLACEHOLDERS = "placeholders"
    """The number of `<image>` marks is not the number of pictures."""
    TOO_LONG = "too_long"
    EMPTY_ANSWER = "empty_answer"
    EMPTY_PROBLEM = "empty_problem"
    UNREADABLE_ROW = "unreadable_row"
    """Not JSON, not UTF-8, or another number of cells than the header has."""
    UNMAPPED_IMAGE = "unmapped_image"
    """A picture stands in a column that no one said holds pictures."""
    BAD_OPTIONS = "bad_options"
    CONTAMINATED = "contaminated"
    """The row occurs in an evaluation set."""


class RowError(DataError):
    """One row is unusable; the rest of the file may be fine."""

    def __init__(self, reason: DropReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason

    def __reduce__(self) -> tuple[type[RowError], tuple[DropReason, str]]:
        return type(self), (self.reason, str(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRef:
    """A picture as a row holds it: encoded bytes, or the place of a file."""

    encoded: bytes | None = None
    path: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row, nothing decoded or judged yet."""

    index: int
    """Number of the row in the whole data set."""
    problem: str
    answer: str
    images: tuple[ImageRef, ...]
    folder: str
    """Folder of the row's file; image paths are relative to it."""
    meta: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _RowGroup:
    file: str
    index: int
    num_rows: int


@dataclass(frozen=True, kw_only=True)
class PromptTable:
    """The checked outline of a data set; small, holds no rows, safe to send to other processes."""

    spec: str
    """The path or glob that it was opened by."""
    files: tuple[str, ...]
    num_rows: int
    image_column: str | None
    meta_columns: tuple[str, ...]
    _groups: tuple[_RowGroup, ...] = field(repr=False)
    _starts: tuple[int, ...] = field(repr=False)
    """First row of each row group."""

    def read(self, rows: Sequence[int]) -> list[Row]:
        """Rows by number, in the order asked for; each row group is read once.

        Raises:
            IndexError: a number is outside [0, num_rows).
            DataError: a file has vanished or cannot be read any more.
        """
        by_group: dict[int, list[int]] = {}
        for row in rows:
            if not 0 <= row < self.num_rows:
                raise IndexError(
                    f"row {row} of {self.spec}, which has rows 0 to {self.num_rows - 1}"
                )
            by_group.setdefault(bisect.bisect_right(self._starts, row) - 1, []).append(row)
        read: dict[int, Row] = {}
        for number, wanted in by_group.items():
            first = self._starts[number]
            group = self._groups[number]
            table = _read_group(group, self._columns)
            picked = table.take([row - first for row in wanted]).to_pylist()
            folder = str(Path(group.file).parent)
            for row, cells in zip(wanted, picked, strict=True):
                read[row] = self._row(row, cells, folder)
        return [read[row] for row in rows]

    @property
    def _columns(self) -> tuple[str, ...]:
        image = () if self.image_column is None else (self.image_column,)
        return ("problem", "answer", *image, *self.meta_columns)

    def _row(self, index: int, cells: dict[str, Any], folder: str) -> Row:
        images = cells[self.image_column] if self.image_column is not None else None
        return Row(
            index=index,
            problem=cells["problem"] or "",
            answer=cells["answer"] or "",
            images=tuple(_image_refs(images)),
            folder=folder,
            meta={k: cells[k] for k in self.meta_columns if cells[k] is not None},
        )


def open_table(spec: str | Path) -> PromptTable:
    """Find the files, check their columns and count their rows, from metadata alone.

    Args:
        spec: a Parquet file, a folder of `*.parquet`, or a glob.

    Raises:
        DataError: nothing there, not Parquet, a missing column or a wrong type, or no rows.
    """
    files = _find_files(str(spec))
    groups: list[_RowGroup] = []
    image_column: str | None = None
    meta_columns: tuple[str, ...] = ()
    for file in files:
        try:
            with pq.ParquetFile(file) as parquet:
                metadata, schema = parquet.metadata, parquet.schema_arrow
        except (OSError, pa.ArrowInvalid) as err:
            raise DataError(f"cannot read {file} as Parquet: {first_line(err)}") from err
        image, meta = _check_schema(schema, file)
        if file == files[0]:
            image_column, meta_columns = image, meta
        if image != image_column:
            raise DataError(
                f"{file} has image column {image!r}, but {files[0]} has {image_column!r}; "
                "all files of a data set need the same columns"
            )
        # Only what every file has can be read from every file.
        meta_columns = tuple(name for name in meta_columns if name in meta)
        for index in range(metadata.num_row_groups):
            group = metadata.row_group(index)
            if group.num_rows == 0:
                continue
            if group.total_byte_size > _LARGE_ROW_GROUP_BYTES:
                logger.warning(
                    "row group %d of %s holds %.0f MiB, so shuffled reading is slow; write it "
                    "again with smaller row groups",
                    index,
                    file,
                    group.total_byte_size / 2**20,
                )
            groups.append(_RowGroup(file=file, index=index, num_rows=group.num_rows))
    *starts, num_rows = accumulate((group.num_rows for group in groups), initial=0)
    if num_rows == 0:
        raise DataError(f"{spec} has no rows; at least one is needed")
    return PromptTable(
        spec=str(spec),
        files=tuple(files),
        num_rows=num_rows,
        image_column=image_column,
        meta_columns=meta_columns,
        _groups=tuple(groups),
        _starts=tuple(starts),
    )


@contextmanager
def naming(place: str) -> Iterator[None]:
    """Put the place of what is wrong with a row in front of the error that says so."""
    try:
        yield
    except RowError as err:
        raise RowError(err.reason, f"{place}: {err}") from err


def prompt_id(problem: str, answer: str, image_hashes: Iterable[str]) -> str:
    """Content hash of a row: 16 hex digits, the same in every run and on every machine.

    Args:
        problem: text as the file has it.
        answer: text as the file has it.
        image_hashes: sha256 of each picture's encoded bytes, in order.
    """
    digest = hashlib.sha256()
    for part in (problem, answer, *image_hashes):
        data = part.encode()
        # The length in front keeps ("ab", "c") and ("a", "bc") apart.
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()[:16]


def _find_files(spec: str) -> list[str]:
    path = Path(spec).expanduser()
    if path.is_file():
        files = [path]
    elif path.is_dir():
        files = sorted(path.glob("*.parquet"))
        if not files:
            raise DataError(f"folder {spec} holds no *.parquet file")
    else:
        files = [Path(name) for name in sorted(glob.glob(str(path), recursive=True))]  # noqa: PTH207
        if not files:
            kind = (
                "glob matches no file" if glob.has_magic(spec) else "file or folder does not exist"
            )
            raise DataError(f"data {spec!r}: {kind} (looked from {Path.cwd()})")
    # Absolute, since readers in other processes may have another working directory.
    return [str(file.absolute()) for file in files]


def _check_schema(schema: pa.Schema, file: str) -> tuple[str | None, tuple[str, ...]]:
    """Names of the image column (None for text-only data) and of the other text columns."""
    missing = [name for name in ("problem", "answer") if name not in schema.names]
    if missing:
        raise DataError(
            f"{file} lacks the column{'s' if len(missing) > 1 else ''} {', '.join(missing)}; "
            f"it has {', '.join(schema.names) or 'none'}, expected problem, images, answer"
        )
    for name in ("problem", "answer"):
        if not _is_text(schema.field(name).type):
            raise DataError(
                f"column {name} of {file} has type {schema.field(name).type}, expected string"
            )
    present = [name for name in _IMAGE_COLUMNS if name in schema.names]
    if len(present) > 1:
        raise DataError(f"{file} has both columns images and image; keep one of them")
    image_column = present[0] if present else None
    if image_column is not None and not _is_image(schema.field(image_column).type):
        raise DataError(
            f"column {image_column} of {file} has type {schema.field(image_column).type}, expected "
            "list<struct<bytes: binary, path: string>>"
        )
    taken = {"problem", "answer", image_column}
    meta = tuple(f.name for f in schema if f.name not in taken and _is_text(f.type))
    return image_column, meta


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def _is_binary(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)
    )


def _is_image(kind: pa.DataType) -> bool:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        kind = kind.value_type
    if pa.types.is_struct(kind):
        fields = {kind.field(i).name: kind.field(i).type for i in range(kind.num_fields)}
        # A column whose paths are all null is written with the type null.
        bytes_fit = "bytes" in fields and (
            _is_binary(fields["bytes"]) or pa.types.is_null(fields["bytes"])
        )
        path_fits = "path" not in fields or (
            _is_text(fields["path"]) or pa.types.is_null(fields["path"])
        )
        return bytes_fit and path_fits
    return _is_text(kind) or _is_binary(kind)


def _image_refs(cell: Any) -> Iterator[ImageRef]:
    if cell is None:
        return
    for item in cell if isinstance(cell, list) else [cell]:
        if isinstance(item, bytes):
            yield ImageRef(encoded=item)
        elif isinstance(item, str):
            yield ImageRef(path=item)
        elif item is None:
            yield ImageRef()
        else:
            yield ImageRef(encoded=item["bytes"], path=item.get("path"))


@cached(LRUCache(_CACHE_BYTES, getsizeof=lambda table: table.nbytes))
def _read_group(group: _RowGroup, columns: tuple[str, ...]) -> pa.Table:
    """A row group, from those read last by this process if it is among them."""
    try:
        with pq.ParquetFile(group.file) as parquet:
            return parquet.read_row_group(group.index, list(columns), use_threads=False)
    except (OSError, pa.ArrowInvalid) as err:
        raise DataError(f"cannot read {group.file}: {first_line(err)}") from err
