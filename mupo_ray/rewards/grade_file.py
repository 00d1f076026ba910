"""Grades a JSONL file of anyone's responses: the same rows out, in order, with a verdict each.

    file --chunks of lines--> rows --verdicts_of--> rows with their verdicts --> file

Memory holds one chunk. The output appears whole, under its name, or not at all.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from mupo_ray.errors import DataError
from mupo_ray.files import whole
from mupo_ray.rewards.algebra_pool import AlgebraPool
from mupo_ray.rewards.equality.choices import check_options
from mupo_ray.rewards.extract import opens_think
from mupo_ray.rewards.verdicts import verdicts_of
from mupo_ray.types import Reason, Verdict

CHUNK_ROWS = 512
MAX_LINE_BYTES = 16 * 2**20
"""A longer line is a bad row; the rest of it is skipped, not held."""

_CHUNK_BYTES = 32 * 2**20


@dataclass(frozen=True, slots=True)
class _Row:
    """A line of the input: what it holds, and what is wrong with it."""

    cells: dict[str, Any]
    error: str | None = None
    options: dict[str, str] | None = None


def grade_file(
    source: Path, target: Path, *, algebra_pool: AlgebraPool, prompt_suffix: str = ""
) -> Counter[str]:
    """Write `source` with verdicts to `target`.

    Args:
        source: JSONL with `response`, `gold` and, where there are, `options` and `prompt_suffix`.
        target: written whole or not at all, into a folder that is there; may be `source`.
        algebra_pool: where algebra is done.
        prompt_suffix: what rendered prompts end with, for rows that do not say; where that is
            `<think>`, no response needs to open it.

    Returns:
        How many rows have each reason.

    Raises:
        DataError: `source` cannot be read or `target` cannot be written.
        RewardError: no algebra worker can start.
    """
    counts: Counter[str] = Counter()
    if not target.parent.is_dir():
        raise DataError(f"{target}: No such file or directory")
    try:
        with (
            source.open("rb") as lines,
            whole(target) as draft,
            draft.open("w", encoding="utf-8", newline="\n") as out,
        ):
            for chunk in _chunks(lines):
                verdicts = _verdicts_of(chunk, algebra_pool, prompt_suffix)
                for row, verdict in zip(chunk, verdicts, strict=True):
                    counts[verdict.reason] += 1
                    out.write(_line(row, verdict) + "\n")
    except OSError as error:
        name = source if error.filename == str(source) else target
        raise DataError(f"{name}: {error.strerror}") from error
    return counts


def _chunks(file: IO[bytes]) -> Iterator[list[_Row]]:
    """Rows up to the limit of number or of bytes, whichever comes first."""
    chunk: list[_Row] = []
    num_bytes = 0
    for size, row in _rows(file):
        chunk.append(row)
        num_bytes += size
        if len(chunk) >= CHUNK_ROWS or num_bytes >= _CHUNK_BYTES:
            yield chunk
            chunk, num_bytes = [], 0
    if chunk:
        yield chunk


def _rows(file: IO[bytes]) -> Iterator[tuple[int, _Row]]:
    number = 0
    while line := file.readline(MAX_LINE_BYTES):
        number += 1
        if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
            while (rest := file.readline(MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
                pass
            error = f"line {number}: more than {MAX_LINE_BYTES} bytes"
            yield 0, _Row({}, error)
        else:
            yield len(line), _parse(line.removeprefix(b"\xef\xbb\xbf"), number)


def _parse(line: bytes, number: int) -> _Row:
    try:
        cells = json.loads(line.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        start = line[:200].decode("utf-8", "replace").rstrip("\r\n")
        return _Row({"line": start}, f"line {number}: not JSON: {str(error)[:100]}")
    if not isinstance(cells, dict):
        return _Row({"line": cells}, f"line {number}: got {_kind(cells)}, should be an object")
    if "response" not in cells:
        return _Row(cells, f"line {number}: response is missing")
    for name, kinds in (
        ("response", (str,)),
        ("gold", (str, type(None))),
        ("prompt_suffix", (str, type(None))),
    ):
        if not isinstance(cells.get(name, ""), kinds):
            return _Row(cells, f"line {number}: {name} is {_kind(cells[name])}, should be text")
    if cells.get("options") is None:
        return _Row(cells)
    try:
        return _Row(cells, options=check_options(cells["options"]))
    except ValueError as error:
        return _Row(cells, f"line {number}: {error}")


def _verdicts_of(
    chunk: Sequence[_Row], algebra_pool: AlgebraPool, prompt_suffix: str
) -> list[Verdict]:
    verdicts: dict[int, Verdict] = {}
    for is_think_opened in (False, True):
        chosen = [
            index
            for index, row in enumerate(chunk)
            if row.error is None
            and opens_think(row.cells.get("prompt_suffix") or prompt_suffix) is is_think_opened
        ]
        rows = [chunk[index] for index in chosen]
        several = verdicts_of(
            [row.cells["response"] for row in rows],
            [row.cells.get("gold") for row in rows],
            [row.options for row in rows],
            is_think_opened=is_think_opened,
            algebra_pool=algebra_pool,
        )
        verdicts.update(zip(chosen, several, strict=True))
    bad = Verdict(accuracy=0.0, format=0.0, extracted=None, reason=Reason.BAD_ROW)
    return [verdicts.get(index, bad) for index in range(len(chunk))]


def _line(row: _Row, verdict: Verdict) -> str:
    cells = row.cells | {
        "accuracy": verdict.accuracy,
        "format": verdict.format,
        "extracted": verdict.extracted,
        "reason": str(verdict.reason),
    }
    if row.error is not None:
        cells["error"] = row.error
    text = json.dumps(cells, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # Half a surrogate pair, which JSON can hold and UTF-8 cannot.
        text = json.dumps(cells)
    return text


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def _kind(value: object) -> str:
    names = {
        dict: "an object",
        list: "a list",
        str: "text",
        bool: "a truth value",
        type(None): "null",
    }
    return names.get(type(value), "a number")
