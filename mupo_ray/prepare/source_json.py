"""JSON files as JSONL: whatever their size, one row is in memory at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from mupo_ray.errors import DataError

_CHUNK_CHARS = 2**20
# What kind of JSON a file holds is judged by at most this much of it.
_GLANCE_CHARS = 2**24


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
    """A JSON file read through a window that grows only over one row."""

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
            found = self._decoder.decode(self._text)
        except (ValueError, RecursionError):
            return False
        return any(isinstance(found.get(name), str) for name in ("problem", "question"))

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
            found = repr(self.peek()) if self.peek() else "the end of the file"
            raise self._error(f"expected {character!r}, got {found}")
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
            found = self._text[self._at : end]
            self._at = end
            return found

    def _fill(self) -> bool:
        # Twice the window each time, so that a huge row is not parsed over and over.
        more = self._stream.read(max(_CHUNK_CHARS, len(self._text) - self._at))
        self._passed += self._at
        self._text = self._text[self._at :] + more
        self._at = 0
        return bool(more)

    def _error(self, what: str) -> DataError:
        return DataError(f"{self._path} is not JSON at character {self._passed + self._at}: {what}")
