"""Rows of JSONL and TSV files, where each of them begins, and JSON files as JSONL.

Lines end at a line feed only: U+2028 and its like may stand inside a text. A row that cannot be
read is a `RowError` in its place, so that the rows around it are not lost. Whatever a file's
size, one row of it is in memory at a time.
"""

from __future__ import annotations

import ast
import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from mupo_ray.data.table import DropReason, RowError
from mupo_ray.errors import DataError

Cells = dict[str, Any]

MAX_REFERENCE_CHARS = 64
"""An image cell of a VLMEvalKit TSV that is at most this long is the index of another row."""

_BOM = b"\xef\xbb\xbf"
_CHUNK_CHARS = 2**20
# What kind of JSON a file holds is judged by at most this much of it.
_GLANCE_CHARS = 2**24


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
            value = parse(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
            continue
        return value if isinstance(value, list | dict) else None
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
        row = loads(raw.decode("utf-8"))
        if isinstance(row, dict):
            "".join(row).encode()
    except UnicodeError as err:
        raise RowError(DropReason.UNREADABLE_ROW, f"not UTF-8: {err}") from None
    except ValueError as err:
        raise RowError(DropReason.UNREADABLE_ROW, f"not JSON: {err}") from None
    if not isinstance(row, dict):
        kind = type(row).__name__
        raise RowError(DropReason.UNREADABLE_ROW, f"is a JSON {kind}, expected an object")
    return row


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


def json_to_jsonl(path: Path, spool: Path) -> bool:
    """Write the rows of a JSON file one a line, without ever holding the whole file.

    Rows are the items of an array, or of the one array in an object, or the objects that an object
    names, which then get their name as `_key`.

    Args:
        path: the file.
        spool: JSONL file to write.

    Returns:
        False where the file turns out to be JSONL under another name; nothing is written then.

    Raises:
        DataError: not JSON; the place is named.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            text = _JsonText(stream, path)
            if text.peek() == "{" and text.is_jsonl():
                return False
            with spool.open("w", encoding="utf-8", newline="\n") as out:
                for item in text.rows():
                    # A line feed can only stand between tokens: JSON strings hold none.
                    out.write(item.replace("\r", " ").replace("\n", " ") + "\n")
    except UnicodeDecodeError as err:
        raise DataError(f"{path} is not UTF-8: {err}") from err
    return True


class _JsonText:
    """A JSON file read through a window that grows only over one row.

    Not ijson: it parses what is only to be cut out (0.9 against 0.55 s for 50 MB), loses how a
    number was written, refuses NaN and does not say where a file is broken.
    """

    def __init__(self, stream: TextIO, path: Path) -> None:
        self._stream = stream
        self._path = path
        self._text = ""
        self._at = 0
        self._passed = 0
        # Rows are only cut out here; their numbers need not be read, whatever their length.
        self._decoder = json.JSONDecoder(parse_int=len, parse_float=len)

    def peek(self) -> str:
        """The next character that is not white space, "" at the end."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in " \t\r\n":
                self._at += 1
            if self._at < len(self._text) or not self._fill():
                return self._text[self._at : self._at + 1]

    def is_jsonl(self) -> bool:
        """Whether a second object follows the first; stays at the beginning."""
        while "\n" not in self._text.strip():
            if len(self._text) > _GLANCE_CHARS or not self._fill():
                return False
        first, _, rest = self._text.strip().partition("\n")
        try:
            self._decoder.decode(first.strip())
        except (ValueError, RecursionError):
            return False
        return rest.lstrip().startswith("{")

    def rows(self) -> Iterator[str]:
        """The text of each row."""
        if self.peek() == "[":
            yield from self._items()
        elif self.peek() == "{":
            if self._is_row():
                yield self._value()
            else:
                yield from self._members()
        else:
            raise self._error("expected an array or an object")
        if self.peek():
            raise self._error("more text behind the end")

    def _is_row(self) -> bool:
        """Whether the whole file is one row."""
        while len(self._text) <= _GLANCE_CHARS and self._fill():
            pass
        try:
            row = self._decoder.decode(self._text)
        except (ValueError, RecursionError):
            return False
        return any(isinstance(row.get(name), str) for name in ("problem", "question"))

    def _items(self) -> Iterator[str]:
        self._take("[")
        while self.peek() != "]":
            yield self._value()
            if self.peek() != "]":
                self._take(",")
        self._take("]")

    def _members(self) -> Iterator[str]:
        self._take("{")
        has_array = False
        while self.peek() != "}":
            key = self._value()
            self._take(":")
            if self.peek() == "[":
                if has_array:
                    raise self._error(f"a second array, {key}; rows are expected in one")
                has_array = True
                yield from self._items()
            elif self.peek() == "{":
                value = self._value()
                comma = "" if value[1:].lstrip().startswith("}") else ","
                yield f'{{"_key": {key}{comma} {value[1:]}'
            else:
                self._value()
            if self.peek() != "}":
                self._take(",")
        self._take("}")

    def _take(self, character: str) -> None:
        if self.peek() != character:
            place = repr(self.peek()) if self.peek() else "the end of the file"
            raise self._error(f"expected {character!r}, got {place}")
        self._at += 1

    def _value(self) -> str:
        self.peek()
        while True:
            try:
                _, end = self._decoder.raw_decode(self._text, self._at)
            except RecursionError:
                raise self._error("nested too deep") from None
            except ValueError as err:
                if not self._fill():
                    raise self._error(str(err)) from None
                continue
            # A number at the end of the window may go on behind it.
            if end == len(self._text) and self._fill():
                continue
            value = self._text[self._at : end]
            self._at = end
            return value

    def _fill(self) -> bool:
        # Twice the window each time, so that a huge row is not parsed over and over.
        more = self._stream.read(max(_CHUNK_CHARS, len(self._text) - self._at))
        self._passed += self._at
        self._text = self._text[self._at :] + more
        self._at = 0
        return bool(more)

    def _error(self, what: str) -> DataError:
        return DataError(f"{self._path} is not JSON at character {self._passed + self._at}: {what}")
