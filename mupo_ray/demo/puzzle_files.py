"""Puzzles on disk, as the parquet files that any vision-language data set would be."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mupo_ray.demo.puzzles import (
    PROMPT,
    Puzzle,
    Strategy,
    add_hint,
    encode_png,
    render,
    sample_puzzle,
)

ROWS_PER_GROUP = 32
"""Small row groups: fetching one row decodes half a megabyte, not the file."""

PUZZLE_SCHEMA = pa.schema(
    [
        ("problem", pa.string()),
        ("images", pa.list_(pa.struct([("bytes", pa.binary()), ("path", pa.string())]))),
        ("answer", pa.string()),
        ("category", pa.string()),
        ("source", pa.string()),
        ("board", pa.string()),
    ]
)
"""`category` names the two valid strategies, `board` the visible numbers in `CELLS` order."""

HINTED_SCHEMA = PUZZLE_SCHEMA.append(pa.field("hint", pa.string()))
"""`hint` names the strategies whose quadrant is white, none to four."""

DEFAULT_SPLITS: Mapping[str, int] = {"train": 2048, "eval": 256, "test": 256}
"""Rows of each file."""


def write_puzzles(
    folder: Path,
    seed: int,
    splits: Mapping[str, int] = DEFAULT_SPLITS,
    *,
    hinted: bool = False,
) -> dict[str, Path]:
    """Write one parquet file a split; no board is in two of them, nor twice in one.

    Each split draws from its own stream of `seed`, so the rows of a split do not depend on how many
    another has, except where a board must be redrawn because an earlier split holds it. Splits are
    filled smallest first for that reason: adding training rows leaves evaluation rows as they are.
    Hints draw from a stream of their own, so hinted pictures differ from the plain ones of a seed
    in the hidden cell alone.

    Args:
        folder: where to write `<split>.parquet`; made if absent.
        seed: of all puzzles and pictures.
        splits: name -> number of rows.
        hinted: whether the hidden cells show a hint.

    Returns:
        name -> file.

    Raises:
        ValueError: a split has no rows.
    """
    folder.mkdir(parents=True, exist_ok=True)
    seen: set[tuple[int, ...]] = set()
    files: dict[str, Path] = {}
    schema = HINTED_SCHEMA if hinted else PUZZLE_SCHEMA
    for split, num_rows in sorted(splits.items(), key=lambda item: (item[1], item[0])):
        if num_rows < 1:
            raise ValueError(f"split {split!r} has {num_rows} rows; give it at least 1")
        # The name, not the place, picks the stream.
        rng = np.random.default_rng([seed, *split.encode()])
        hint_rng = rng.spawn(1)[0] if hinted else None
        files[split] = folder / f"{split}.parquet"
        with pq.ParquetWriter(files[split], schema, compression="none") as writer:
            for start in range(0, num_rows, ROWS_PER_GROUP):
                stop = min(start + ROWS_PER_GROUP, num_rows)
                rows = [
                    _row(_fresh_puzzle(rng, hint_rng, seen), rng, f"{split}_{index:05d}.png")
                    for index in range(start, stop)
                ]
                writer.write_table(pa.Table.from_pylist(rows, schema=schema))
    return {split: files[split] for split in splits}


def puzzle_of_row(row: Mapping[str, object]) -> Puzzle:
    """The puzzle that a row of these files shows."""
    board = tuple(int(number) for number in str(row["board"]).split())
    hint = row.get("hint")
    return Puzzle(
        board=board,
        truth=int(str(row["answer"])),
        hint=None if hint is None else tuple(map(Strategy, str(hint).split())),
    )


def read_boards(file: Path) -> list[tuple[int, ...]]:
    """The boards of a file, in the order of its rows."""
    column = pq.read_table(file, columns=["board"])["board"].to_pylist()
    return [tuple(map(int, board.split())) for board in column]


def _fresh_puzzle(
    rng: np.random.Generator, hint_rng: np.random.Generator | None, seen: set[tuple[int, ...]]
) -> Puzzle:
    while True:
        puzzle = sample_puzzle(rng)
        if puzzle.board not in seen:
            seen.add(puzzle.board)
            return puzzle if hint_rng is None else add_hint(puzzle, hint_rng)


def _row(puzzle: Puzzle, rng: np.random.Generator, name: str) -> dict[str, object]:
    row: dict[str, object] = {
        "problem": PROMPT,
        "images": [{"bytes": encode_png(render(puzzle, rng)), "path": name}],
        "answer": str(puzzle.truth),
        "category": "+".join(puzzle.valid),
        "source": "puzzles/plain",
        "board": " ".join(map(str, puzzle.board)),
    }
    if puzzle.hint is not None:
        row |= {"source": "puzzles/hinted", "hint": " ".join(puzzle.hint)}
    return row
