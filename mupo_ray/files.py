"""Files that are whole or not there, and files that grow line by line.

Whatever is read by another process, or after a kill, is written beside its place and renamed; what
is appended to may end in a torn line, which is no line.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A draft that takes the place of `path` once the block has ended well, and else goes.

    Args:
        path: of a file; its folder is made. Processes that write the same one do not mix.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text as UTF-8, whole or not at all."""
    with whole(path) as draft:
        draft.write_text(text, encoding="utf-8", newline="\n")


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON for people to read too, whole or not at all."""
    write_text(path, json.dumps(value, indent=1) + "\n")


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows as lines of JSON, whole or not at all."""
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The rows of a file of JSON lines, oldest first; none where there is no file.

    A last line without its end was cut short by a kill or a full disk, and is left out.

    Raises:
        ValueError: another line is not a JSON object; names the file and the line.
    """
    if not path.exists():
        return []
    rows = []
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
        if not line.endswith(b"\n"):
            break
        try:
            row = json.loads(line)
        except ValueError as err:
            raise ValueError(f"{path}:{number}: {err}; expected a JSON object") from None
        if not isinstance(row, dict):
            raise ValueError(
                f"{path}:{number}: got {type(row).__name__}, expected a JSON object a line"
            )
        rows.append(row)
    return rows


def sha256_of(data: bytes | str, length: int = 64) -> str:
    """The first `length` hexadecimal digits of a content's hash."""
    content = data.encode() if isinstance(data, str) else data
    return hashlib.sha256(content).hexdigest()[:length]
