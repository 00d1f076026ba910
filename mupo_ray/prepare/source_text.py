"""Rows of JSONL and TSV files, and where each of them begins.

Lines end at a line feed only: U+2028 and its like may stand inside a text. A row that cannot be
read is a `RowError` in its place, so that the rows around it are not lost.
"""

from __future__ import annotations

import ast
import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from mupo_ray.data.table import DropReason, RowError
from mupo_ray.errors import DataError

Cells = dict[str, Any]

MAX_REFERENCE_CHARS = 64
"""An image cell of a VLMEvalKit TSV that is at most this long is the index of another row."""

_BOM = b"\xef\xbb\xbf"


class JsonFloat(float):
    """A number that remembers how it was written: an answer of 1.50 is the text 1.50."""

    text: str

    def __new__(cls, text: str) -> JsonFloat:
        """Parse a number."""
        number = super().__new__(cls, text)
        number.text = text
        return number


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """One row and its place."""

    start: int
    """Byte at which it begins."""
    stop: int
    """Byte behind its last one."""
    line: int
    """First line, counted from 1."""
    content: Cells | RowError


def read_jsonl(path: Path, start: int = 0, line: int = 1) -> Iterator[Located]:
    """Rows of a file with one JSON object a line; empty lines are no rows.

    Args:
        path: the file.
        start: byte to start at, the beginning of a line.
        line: number of that line.
    """
    with path.open("rb") as stream:
        for begin, end, number, raw in _lines(stream, start, line):
            if raw.strip():
                yield Located(start=begin, stop=end, line=number, content=_parsed(_object, raw))


def read_tsv(path: Path, header: list[str], start: int, line: int) -> Iterator[Located]:
    """Rows of a table with quoted cells, which may hold tabs and line feeds.

    Args:
        path: the file.
        header: names of the columns.
        start: byte to start at, the beginning of a row.
        line: number of its line.
    """
    for begin, end, number, fields in _records(path, start, line):
        if isinstance(fields, RowError):
            yield Located(start=begin, stop=end, line=number, content=fields)
        elif fields:
            yield Located(
                start=begin, stop=end, line=number, content=_parsed(_table_row, fields, header)
            )


def read_tsv_header(path: Path) -> tuple[list[str], int, int]:
    """Names of a table's columns, the byte at which its rows begin, and the line.

    Raises:
        DataError: no header, or a name twice.
    """
    for _, end, number, fields in _records(path, 0, 1):
        if isinstance(fields, RowError):
            raise DataError(f"{path}: the header cannot be read: {fields}")
        twice = sorted({name for name in fields if fields.count(name) > 1})
        if twice:
            raise DataError(f"{path} has the column {', '.join(twice)} twice; rename one of them")
        return fields, end, number + 1
    raise DataError(f"{path} is empty, expected a header line and rows")


def check_last_quote(path: Path, last: Located | None) -> None:
    """Refuse a table whose last cell swallowed the rest of the file.

    Raises:
        DataError: the last row opens a quote that never closes.
    """
    if last is None:
        return
    with path.open("rb") as stream:
        stream.seek(last.start)
        text = stream.read().decode("utf-8", "replace")
    try:
        for _ in csv.reader(text.splitlines(keepends=True), delimiter="\t", strict=True):
            pass
    except csv.Error as err:
        if "unexpected end of data" in str(err):
            raise DataError(
                f"{path}: a quote is opened in the row of line {last.line} and never closed, so "
                "that all rows behind it are part of one cell"
            ) from None


def loads(text: str) -> Any:
    """Parse JSON; numbers keep their spelling, NaN is a missing value.

    Raises:
        ValueError: not JSON, or nested too deep.
    """
    try:
        return json.loads(
            text, parse_float=JsonFloat, parse_constant=lambda name: None if "N" in name else name
        )
    except RecursionError:
        raise ValueError("nested too deep") from None


def literal(text: str) -> Any:
    """A list or object written as JSON, or as Python writes it; None for any other text."""
    for parse in (loads, ast.literal_eval):
        try:
            found = parse(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
            continue
        return found if isinstance(found, list | dict) else None
    return None


def _lines(stream: BinaryIO, start: int, line: int) -> Iterator[tuple[int, int, int, bytes]]:
    stream.seek(start)
    while raw := stream.readline():
        end = start + len(raw)
        yield start, end, line, raw.removeprefix(_BOM) if start == 0 else raw
        start, line = end, line + 1


def _parsed(parse: Callable[..., Cells], *args: Any) -> Cells | RowError:
    try:
        return parse(*args)
    except RowError as err:
        return err


def _object(raw: bytes) -> Cells:
    try:
        found = loads(raw.decode("utf-8"))
        if isinstance(found, dict):
            "".join(found).encode()
    except UnicodeError as err:
        raise RowError(DropReason.UNREADABLE_ROW, f"not UTF-8: {err}") from None
    except ValueError as err:
        raise RowError(DropReason.UNREADABLE_ROW, f"not JSON: {err}") from None
    if not isinstance(found, dict):
        kind = type(found).__name__
        raise RowError(DropReason.UNREADABLE_ROW, f"is a JSON {kind}, expected an object")
    return found


def _table_row(fields: list[str], header: list[str]) -> Cells:
    if len(fields) != len(header):
        raise RowError(
            DropReason.UNREADABLE_ROW,
            f"has {len(fields)} cells, but the header names {len(header)} columns",
        )
    # An empty cell is a missing value; None, NA and 007 are texts.
    return {name: cell or None for name, cell in zip(header, fields, strict=True)}


def _records(
    path: Path, start: int, line: int
) -> Iterator[tuple[int, int, int, list[str] | RowError]]:
    # The module's limit of 131,072 characters is shorter than a picture in base64.
    csv.field_size_limit(2**31 - 1)
    with path.open("rb") as stream:
        place = [start, line]

        def texts() -> Iterator[str]:
            for _, end, number, raw in _lines(stream, start, line):
                place[:] = end, number + 1
                yield raw.decode("utf-8", "surrogateescape")

        reader = csv.reader(texts(), delimiter="\t")
        while True:
            begin, number = place
            try:
                fields: list[str] | RowError = next(reader)
            except StopIteration:
                return
            except csv.Error as err:
                fields = RowError(DropReason.UNREADABLE_ROW, f"not a row of a table: {err}")
            yield begin, place[0], number, fields
