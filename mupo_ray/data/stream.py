"""The prompts of a table: shuffled, endless and resumable for training, or each once and in order.

    position 0 1 2 ...           row = permutation(seed, epoch)[position % rows]
       |                         rank = position % world_size
       v
    Ray Data tasks: positions -> rows -> rendered prompts     (`InOrder`: ahead of need, in order)
       |
       v
    next(n)                                                   (this process)

Which row stands at a position depends on the seed and the number of rows alone, so one integer,
the position, is all the state there is: any number of workers, resumed anywhere, reads the same
sequence. A step takes the next n positions; each rank gets those that are its own modulo the world
size. A bad row keeps its position and yields no prompt: the step is that much smaller, and the row
is counted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from mupo_ray.core.seeding import derive_seed
from mupo_ray.data.render import PromptRenderer, RenderPlan
from mupo_ray.data.table import PromptTable, Row, RowError, open_table
from mupo_ray.errors import DataError
from mupo_ray.types import Prompt, RgbImage

if TYPE_CHECKING:
    from mupo_ray.data.chat import ChatRenderer
    from mupo_ray.data.pipeline import Task

logger = logging.getLogger(__name__)

# Rows tried before a data set that has given no prompt yet is called all bad.
_MAX_ROWS_TRIED = 1024
# Rows of a set below which starting tasks takes longer than it saves, and those of one task.
_MIN_ROWS_FOR_RAY = 512
_TASK_ROWS = 16

# A prompt as a row of Ray Data, or a row of the table that gave none.
_IMAGE_FIELDS = [
    ("sha256", pa.string()),
    ("width", pa.int32()),
    ("height", pa.int32()),
    ("rgb", pa.large_binary()),
]
_PROMPT_FIELDS = [
    ("prompt_id", pa.string()),
    ("position", pa.int64()),
    ("token_ids", pa.list_(pa.int32())),
    ("images", pa.list_(pa.struct(_IMAGE_FIELDS))),
    ("question", pa.string()),
    ("answer", pa.string()),
    ("meta", pa.map_(pa.string(), pa.string())),
]
_SCHEMA = pa.schema(
    [*_PROMPT_FIELDS, ("row", pa.int64()), ("reason", pa.string()), ("message", pa.string())]
)


class RowRenderer(Protocol):
    """Makes prompts of rows."""

    def render(self, row: Row, *, position: int) -> Prompt:
        """The prompt of one row; `RowError` where it cannot be used."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """A row that cannot be asked."""

    position: int
    row: int
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptOrder:
    """Which row stands at which position."""

    num_rows: int
    seed: int

    def rows(self, positions: Sequence[int] | np.ndarray) -> list[int]:
        """Row numbers at positions; every `num_rows` positions, an epoch, hold each row once."""
        return [
            int(_permutation(self.seed, p // self.num_rows, self.num_rows)[p % self.num_rows])
            for p in map(int, positions)
        ]


class PromptStream:
    """One worker's share of the sequence, loaded ahead by Ray Data."""

    def __init__(
        self,
        table: PromptTable,
        renderer: PromptRenderer,
        *,
        seed: int,
        position: int = 0,
        end: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        batch_rows: int = 16,
        cpus_per_task: float = 0.1,
        concurrency: int = 1,
        prefetch_prompts: int = 64,
        timeout_s: float = 300.0,
    ) -> None:
        """Start loading; Ray must be up.

        Args:
            table: where the rows are.
            renderer: makes prompts of them.
            seed: of the run; decides the order.
            position: global position to start at, as an earlier stream's `position`.
            end: position at which reading ends; nothing later is rendered. None: endless.
            rank: of this worker.
            world_size: number of workers.
            batch_rows: rows that one Ray Data task renders.
            cpus_per_task: CPU share that one task reserves.
            concurrency: tasks at a time.
            prefetch_prompts: prompts that are held ready in this process.
            timeout_s: longest wait for one prompt.
        """
        if not 0 <= rank < world_size or position < 0:
            raise ValueError(f"rank {rank} of {world_size}, position {position}: out of range")
        from mupo_ray.data.pipeline import InOrder

        self.dropped: dict[str, list[int]] = {}
        """Rows that were met and dropped since the start, by reason; a row once an epoch."""
        self._table = table
        self._renderer = renderer
        self._order = PromptOrder(num_rows=table.num_rows, seed=seed)
        self._position = position
        self._end = end
        self._rank = rank
        self._world_size = world_size
        self._has_good_row = False
        self._failure: DataError | None = None
        # Each task renders `batch_rows` of this rank's positions, which lie `world_size` apart.
        first, step = self._first_own(position), batch_rows * world_size
        self._items = InOrder(
            count(first, step) if end is None else range(first, end, step),
            partial(_positions, table, renderer.plan, self._order, batch_rows, world_size),
            _SCHEMA,
            name=lambda number: (
                f"prompt for position {first + number * world_size} of {table.spec}"
            ),
            cpus_per_task=cpus_per_task,
            concurrency=concurrency,
            ahead=prefetch_prompts,
            timeout_s=timeout_s,
        )

    @property
    def position(self) -> int:
        """The first global position that `next` has not passed; the whole state of the stream."""
        return self._position

    def next(self, n: int) -> list[Prompt]:
        """This rank's prompts of the next `n` global positions, in the order of position.

        Bad rows among them are left out and recorded in `dropped`. Not a collective, but every rank
        must call it with the same `n`.

        Raises:
            DataError: no prompt in time, a file cannot be read any more, or all rows are bad.
            ValueError: these positions reach beyond the stream's end.
        """
        if self._failure is not None:
            raise self._failure
        if self._end is not None and self._position + n > self._end:
            raise ValueError(
                f"positions {self._position} to {self._position + n} were asked for, the stream "
                f"ends at {self._end}"
            )
        try:
            prompts = self._next(n)
        except DataError as err:
            # Items may be lost on the way, so the stream cannot go on.
            self._failure = err
            raise
        self._position += n
        return prompts

    def close(self) -> None:
        """Stop loading; no prompt can be had afterwards."""
        self._failure = self._failure or DataError("the prompt stream is closed")
        self._items.close()

    def _next(self, n: int) -> list[Prompt]:
        first = self._first_own(self._position)
        prompts = []
        for position in range(first, self._position + n, self._world_size):
            item = _item(next(self._items))
            assert item.position == position, (item.position, position)
            if isinstance(item, Prompt):
                prompts.append(item)
            else:
                self._record(item)
        self._has_good_row |= bool(prompts)
        if not self._has_good_row:
            self._require_good_row()
        return prompts

    def _record(self, item: Dropped) -> None:
        rows = self.dropped.setdefault(item.reason, [])
        if item.row not in rows:
            logger.warning("dropped (%s): %s", item.reason, item.message)
        rows.append(item.row)

    def _require_good_row(self) -> None:
        """Tell a data set of bad rows from a share that had bad luck.

        Every rank tries the same rows, so all of them come to the same verdict.
        """
        tried = min(self._table.num_rows, _MAX_ROWS_TRIED)
        counts: dict[str, int] = {}
        example = ""
        for position in range(tried):
            (item,) = _rendered(self._renderer, self._table, self._order.rows([position]))
            if isinstance(item, Prompt):
                self._has_good_row = True
                return
            counts[item.reason] = counts.get(item.reason, 0) + 1
            example = example or item.message
        reasons = ", ".join(f"{reason}: {num}" for reason, num in sorted(counts.items()))
        raise DataError(
            f"none of the {tried} rows tried of {self._table.spec} can be used ({reasons}); "
            f"the first: {example}"
        )

    def _first_own(self, position: int) -> int:
        """The first position from here on that is this rank's."""
        return position + (self._rank - position) % self._world_size


def iter_prompts(
    table: PromptTable, renderer: PromptRenderer | ChatRenderer, limit: int | None = None
) -> Iterator[Prompt | Dropped]:
    """The first rows of a table as prompts, each with its row's number as position.

    They are read as they are needed; where they are many, by Ray Data tasks, and Ray must be up.

    Args:
        table: where the rows are.
        renderer: makes prompts of them.
        limit: rows to read from the start; None reads all.

    Raises:
        DataError: a file cannot be read any more, or no prompt came in time.
    """
    num_rows = table.num_rows if limit is None else min(limit, table.num_rows)
    firsts = range(0, num_rows, _TASK_ROWS)
    if num_rows < _MIN_ROWS_FOR_RAY:
        for first in firsts:
            yield from _rendered(renderer, table, range(first, min(first + _TASK_ROWS, num_rows)))
        return
    from mupo_ray.data.pipeline import InOrder

    plan = renderer.plan if isinstance(renderer, PromptRenderer) else renderer
    items = InOrder(
        firsts,
        partial(_first_rows, table, plan, num_rows),
        _SCHEMA,
        name=lambda number: f"prompt for row {number} of {table.spec}",
    )
    with closing(items):
        yield from map(_item, items)


def load_prompts(
    spec: str | Path,
    renderer: PromptRenderer,
    limit: int | None = None,
    *,
    dropped: dict[str, list[int]] | None = None,
) -> list[Prompt]:
    """The first rows of a data set as prompts, in file order: for evaluation sets.

    Args:
        spec: as for `open_table`.
        renderer: makes prompts of rows.
        limit: rows to read from the start; None reads all.
        dropped: where given, bad rows are left out and recorded here by reason.

    Raises:
        DataError: a bad row and no `dropped`, no good row at all, or what `open_table` raises.
    """
    table = open_table(spec)
    rows = range(table.num_rows if limit is None else min(limit, table.num_rows))
    prompts: list[Prompt] = []
    for item in _rendered(renderer, table, rows):
        if isinstance(item, Prompt):
            prompts.append(item)
            continue
        if dropped is None:
            raise DataError(f"{spec}: {item.message}")
        logger.warning("dropped (%s): %s", item.reason, item.message)
        dropped.setdefault(item.reason, []).append(item.row)
    if not prompts:
        raise DataError(f"none of the first {len(rows)} rows of {spec} can be used: {dropped}")
    return prompts


def _positions(
    table: PromptTable, plan: RenderPlan, order: PromptOrder, num: int, stride: int
) -> Task:
    """A task that renders `num` positions, `stride` apart, from a first one on."""
    renderer = PromptRenderer(plan)

    def task(first: int) -> Iterator[dict[str, Any]]:
        positions = range(first, first + num * stride, stride)
        return map(_cells, _rendered(renderer, table, order.rows(positions), positions))

    return task


def _first_rows(table: PromptTable, plan: RenderPlan | ChatRenderer, num_rows: int) -> Task:
    """A task that renders rows from a first one on, none at or behind `num_rows`."""
    renderer = PromptRenderer(plan) if isinstance(plan, RenderPlan) else plan

    def task(first: int) -> Iterator[dict[str, Any]]:
        rows = range(first, min(first + _TASK_ROWS, num_rows))
        return map(_cells, _rendered(renderer, table, rows))

    return task


def _rendered(
    renderer: RowRenderer,
    table: PromptTable,
    rows: Sequence[int],
    positions: Sequence[int] | None = None,
) -> Iterator[Prompt | Dropped]:
    """Prompts of rows, in order; the rows' numbers are their positions where None."""
    for row, position in zip(table.read(rows), positions or rows, strict=True):
        try:
            yield renderer.render(row, position=position)
        except RowError as err:
            yield Dropped(position=position, row=row.index, reason=err.reason, message=str(err))


def _cells(item: Prompt | Dropped) -> dict[str, Any]:
    """A prompt, or why there is none, as a row of `_SCHEMA`."""
    if isinstance(item, Dropped):
        return {name: getattr(item, name) for name in Dropped.__slots__}
    cells = {name: getattr(item, name) for name, _ in _PROMPT_FIELDS}
    images = [{name: getattr(image, name) for name, _ in _IMAGE_FIELDS} for image in item.images]
    return cells | {"images": images, "meta": list(item.meta.items())}


def _item(cells: dict[str, Any]) -> Prompt | Dropped:
    """What `_cells` was given."""
    if cells["reason"] is not None:
        return Dropped(**{name: cells[name] for name in Dropped.__slots__})
    return Prompt(
        prompt_id=cells["prompt_id"],
        position=cells["position"],
        token_ids=tuple(cells["token_ids"]),
        images=tuple(RgbImage(**image) for image in cells["images"]),
        question=cells["question"],
        answer=cells["answer"],
        meta=dict(cells["meta"]),
    )


@lru_cache(maxsize=2)
def _permutation(seed: int, epoch: int, num_rows: int) -> np.ndarray:
    """[num_rows] the order of one epoch; two are kept, since a batch may cross epochs."""
    return np.random.default_rng(derive_seed(seed, "epoch", epoch)).permutation(num_rows)
