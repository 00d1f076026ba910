"""Rows of whatever people have, in parts that any process can read on its own.

    spec --find_source_files--> files --open_source--> Source: columns, number of rows, parts
                                                          |
                                             any process: read(part) --> RawRow, RawRow, ...

    rows.jsonl            one file
    "shards/*.parquet"    a glob
    folder                a folder of files, or what `Dataset.save_to_disk` wrote
    folder@test           one split of a folder that holds several
    owner/name@test       a split from the Hugging Face hub, or `owner/name:config@test`

Opening reads text files once, to find where rows begin and which columns there are; of Parquet and
Arrow files it reads the metadata alone. No more than a few rows are in memory at a time.
"""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mupo_ray.data.table import DropReason, RowError
from mupo_ray.errors import DataError
from mupo_ray.prepare.source_text import (
    MAX_REFERENCE_CHARS,
    Located,
    check_last_quote,
    json_to_jsonl,
    read_jsonl,
    read_tsv,
    read_tsv_header,
)
from mupo_ray.text import first_line

PART_ROWS = 128
"""Rows that one task prepares."""

_PART_BYTES = 16 * 2**20
_BATCH_ROWS = 16


class FileKind(StrEnum):
    """How a file holds its rows."""

    PARQUET = "parquet"
    ARROW = "arrow"
    """An Arrow stream, as the `datasets` library keeps on disk."""
    JSONL = "jsonl"
    JSON = "json"
    TSV = "tsv"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFiles:
    """Files of one kind, in the order of their rows."""

    kind: FileKind
    paths: tuple[Path, ...]


_SUFFIXES = {
    ".parquet": FileKind.PARQUET,
    ".arrow": FileKind.ARROW,
    ".jsonl": FileKind.JSONL,
    ".ndjson": FileKind.JSONL,
    ".json": FileKind.JSON,
    ".tsv": FileKind.TSV,
}
# Files that describe a data set and hold no row of it.
_ABOUT = {"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"}
_ABOUT |= {"report.json", "config.json"}
_SPLITS = {"train", "test", "testmini", "validation", "valid", "val", "dev", "eval"}
# `test-00001-of-00002-6a611c71596db30f`: the name of a shard on the hub.
_SHARD = re.compile(r"(?P<split>.+?)-\d{5}-of-\d{5}(?:-[0-9a-f]+)?")
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(?::[\w.-]+)?")
_SPLIT = re.compile(r"[\w.-]+")


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
            raise DataError(f"cannot read {part.file}: {first_line(err)}") from err

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


def find_source_files(spec: str) -> SourceFiles:
    """Find the files of a source.

    Args:
        spec: as at the top of this module.

    Raises:
        DataError: nothing there, several splits and none chosen, or a hub that cannot be reached.
    """
    path = Path(spec).expanduser()
    if path.is_file():
        return SourceFiles(kind=_kind(path), paths=(path,))
    if path.is_dir():
        return _in_folder(path, None)
    base, at, split = spec.rpartition("@")
    if at and Path(base).expanduser().is_dir():
        return _in_folder(Path(base).expanduser(), split)
    if glob.has_magic(spec):
        paths = [Path(p) for p in sorted(glob.glob(str(path), recursive=True))]  # noqa: PTH207
        if not paths:
            raise DataError(f"source {spec!r}: the glob matches no file (looked from {Path.cwd()})")
        return _of_one_kind(paths, spec)
    if at and _HUB_ID.fullmatch(base) and _SPLIT.fullmatch(split):
        return _from_hub(base, split)
    if not at and _HUB_ID.fullmatch(spec) and not path.suffix:
        raise DataError(
            f"source {spec!r} is no file or folder here (looked from {Path.cwd()}); if it is a "
            f"Hugging Face id, name the split: {spec}@train"
        )
    raise DataError(
        f"source {spec!r} does not exist (looked from {Path.cwd()}); expected a file, a folder, a "
        "glob, or a Hugging Face id with its split, owner/name@train"
    )


def _kind(path: Path) -> FileKind:
    kind = _SUFFIXES.get(path.suffix.lower())
    if kind is None:
        raise DataError(
            f"source {path}: unknown kind of file {path.suffix!r}, expected one of "
            f"{', '.join(_SUFFIXES)}"
        )
    return kind


def _of_one_kind(paths: list[Path], spec: str) -> SourceFiles:
    kinds = {_kind(path) for path in paths}
    if len(kinds) > 1:
        raise DataError(
            f"source {spec} holds files of several kinds ({', '.join(sorted(kinds))}); name the "
            "file, or those of one kind by a glob"
        )
    return SourceFiles(kind=kinds.pop(), paths=tuple(paths))


def _in_folder(folder: Path, split: str | None) -> SourceFiles:
    if (folder / "dataset_dict.json").is_file():
        splits: list[str] = _described(folder / "dataset_dict.json").get("splits", [])
        if split is None and len(splits) == 1:
            split = splits[0]
        if split not in splits:
            raise DataError(_choose(folder, splits, split))
        return _in_folder(folder / str(split), None)
    if (folder / "state.json").is_file():
        files = _described(folder / "state.json").get("_data_files", [])
        paths = tuple(folder / file["filename"] for file in files)
        if not paths:
            raise DataError(f"data set {folder} lists no data file in its state.json")
        return SourceFiles(kind=FileKind.ARROW, paths=paths)
    names = [p.relative_to(folder) for p in sorted(folder.rglob("*")) if p.is_file()]
    names = [n for n in names if not any(part.startswith(".") for part in n.parts)]
    names = [n for n in names if n.suffix.lower() in _SUFFIXES and n.name not in _ABOUT]
    if split is not None:
        chosen = [n for n in names if split in (_split_of(n), n.stem, *n.parent.parts)]
    else:
        chosen = names
        if len(splits := _splits_of(names)) > 1:
            raise DataError(_choose(folder, splits, None))
    # Metadata in JSON often lies beside the rows; it counts where nothing else does.
    rows = [n for n in chosen if _kind(n) is not FileKind.JSON] or chosen
    if not rows:
        has = ", ".join(_splits_of(names)) or "none"
        raise DataError(
            f"folder {folder} holds no {', '.join(_SUFFIXES)} file"
            + (f" of a split {split!r}; it has {has}" if split else "")
        )
    return _of_one_kind([folder / n for n in rows], str(folder))


def _splits_of(names: list[Path]) -> list[str]:
    return sorted({split for name in names if (split := _split_of(name)) is not None})


def _split_of(name: Path) -> str | None:
    if shard := _SHARD.fullmatch(name.stem):
        return shard["split"]
    if name.stem in _SPLITS:
        return name.stem
    return next((part for part in name.parent.parts if part in _SPLITS), None)


def _choose(folder: Path, splits: list[str], split: str | None) -> str:
    got = "no split was chosen" if split is None else f"there is no split {split!r}"
    return f"data set {folder} has the splits {', '.join(splits)} and {got}; give {folder}@SPLIT"


def _described(file: Path) -> dict[str, Any]:
    try:
        description: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as err:
        raise DataError(f"cannot read {file}: {err}") from err
    return description


def _from_hub(name: str, split: str) -> SourceFiles:
    """Download a split, or find it in the hub's cache (datasets 3 to 5 keep it as Arrow files)."""
    try:
        import datasets
    except ImportError:
        raise DataError(
            f"source {name}@{split} is a Hugging Face id, which needs the package datasets: "
            'pip install "mupo_ray[hub]"; or give a folder with a copy of the data set'
        ) from None
    repository, _, config = name.partition(":")
    try:
        loaded = datasets.load_dataset(repository, config or None, split=split)
        paths = tuple(Path(file["filename"]) for file in loaded.cache_files)
    except Exception as err:  # The library raises its own, its HTTP client's and plain ones.
        raise DataError(
            f"cannot load {name}@{split} from the Hugging Face hub: {type(err).__name__}: "
            f"{first_line(err)}. Where there is no network, fetch it elsewhere "
            "with `hf download --repo-type dataset "
            f"{repository} --local-dir FOLDER` and give FOLDER@{split}"
        ) from err
    return SourceFiles(kind=FileKind.ARROW, paths=paths)


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
            raise DataError(f"cannot read {path} as {files.kind}: {first_line(err)}") from err
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
