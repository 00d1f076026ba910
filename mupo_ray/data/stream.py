"""The endless, shuffled, resumable sequence of prompts that training reads.

    position 0 1 2 ...           row = permutation(seed, epoch)[position % rows]
       |                         rank = position % world_size
       v
    Ray Data tasks: positions -> rows -> rendered prompts     (other processes, in order)
       |
       v
    feeder thread -> bounded queue -> next(n)                 (this process)

Which row stands at a position depends on the seed and the number of rows alone, so one integer,
the position, is all the state there is: any number of workers, resumed anywhere, reads the same
sequence. A step takes the next n positions; each rank gets those that are its own modulo the world
size. A bad row keeps its position and yields no prompt: the step is that much smaller, and the row
is counted.
"""

from __future__ import annotations

import logging
import pickle
import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import ray

from mupo_ray.core.seeding import derive_seed
from mupo_ray.data.ray_rows import rows_in_order
from mupo_ray.data.render import PromptRenderer, RenderPlan
from mupo_ray.data.table import PromptTable, RowError, open_table
from mupo_ray.errors import DataError

if TYPE_CHECKING:
    from mupo_ray.types import Prompt

logger = logging.getLogger(__name__)

# Tasks of one Ray Data pipeline: planning costs grow with them, pauses between pipelines shrink.
_TASKS_PER_PIPELINE = 256
# Rows tried before a data set that has given no prompt yet is called all bad.
_MAX_ROWS_TRIED = 1024
_STORE_BYTES = 256 * 2**20


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
        self.dropped: dict[str, list[int]] = {}
        """Rows that were met and dropped since the start, by reason; a row once an epoch."""
        self._table = table
        self._renderer = renderer
        self._order = PromptOrder(num_rows=table.num_rows, seed=seed)
        self._position = position
        self._end = end
        self._rank = rank
        self._world_size = world_size
        self._batch_rows = batch_rows
        self._cpus_per_task = cpus_per_task
        self._concurrency = concurrency
        self._timeout_s = timeout_s
        self._has_good_row = False
        self._failure: DataError | None = None
        self._queue: queue.Queue[_Item | BaseException] = queue.Queue(maxsize=prefetch_prompts)
        self._stop = threading.Event()
        # The renderer's tables (11 MB for Qwen's vocabulary) are stored once for all tasks.
        self._plan = ray.put(renderer.plan)
        self._thread = threading.Thread(target=self._feed, name="prompt-feeder", daemon=True)
        self._thread.start()

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
        self._stop.set()
        # It may be waiting for a task that the cluster has no room for; being a daemon, it can.
        self._thread.join(timeout=5.0)

    def _next(self, n: int) -> list[Prompt]:
        first = self._first_own(self._position)
        prompts = []
        for position in range(first, self._position + n, self._world_size):
            item = self._take(position)
            assert item.position == position, (item.position, position)
            if isinstance(item, _Good):
                prompts.append(pickle.loads(item.prompt))
            else:
                self._record(item)
        self._has_good_row |= bool(prompts)
        if not self._has_good_row:
            self._require_good_row()
        return prompts

    def _take(self, position: int) -> _Item:
        try:
            item = self._queue.get(timeout=self._timeout_s)
        except queue.Empty:
            free = ray.available_resources().get("CPU", 0.0)
            raise DataError(
                f"no prompt for position {position} of {self._table.spec} within "
                f"{self._timeout_s:g} s: waiting for a Ray Data task that needs "
                f"{self._cpus_per_task:g} CPU, the cluster has {free:g} free"
            ) from None
        if isinstance(item, DataError):
            raise item
        if isinstance(item, BaseException):
            raise DataError(
                f"loading prompts from {self._table.spec} failed: {type(item).__name__}: {item}"
            ) from item
        return item

    def _record(self, item: _Bad) -> None:
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
            item = _render(self._table, self._renderer, self._order, [position])[0]
            if isinstance(item, _Good):
                self._has_good_row = True
                return
            counts[item.reason] = counts.get(item.reason, 0) + 1
            example = example or item.message
        found = ", ".join(f"{reason}: {count}" for reason, count in sorted(counts.items()))
        raise DataError(
            f"none of the {tried} rows tried of {self._table.spec} can be used ({found}); "
            f"the first: {example}"
        )

    def _first_own(self, position: int) -> int:
        """The first position from here on that is this rank's."""
        return position + (self._rank - position) % self._world_size

    def _feed(self) -> None:
        """Thread: run one pipeline after the other, and hand on what comes out."""
        # Each task renders `batch_rows` of this rank's positions, which lie `world_size` apart.
        step = self._batch_rows * self._world_size
        first = self._first_own(self._position)
        try:
            while not self._stop.is_set() and (self._end is None or first < self._end):
                end = first + _TASKS_PER_PIPELINE * step
                firsts = range(first, end if self._end is None else min(end, self._end), step)
                for item in self._pipeline(firsts):
                    if not self._hand_on(item):
                        return
                first = end
        except BaseException as err:  # Raised again by next(), in the thread that waits for it.
            if not self._stop.is_set():
                self._hand_on(err)

    def _hand_on(self, item: _Item | BaseException) -> bool:
        """Wait for room in the queue; False where the stream was closed meanwhile."""
        while not self._stop.is_set():
            try:
                self._queue.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def _pipeline(self, firsts: range) -> Iterator[_Item]:
        """Prompts from Ray Data, one task for each of the first positions given."""
        task = partial(
            _render_task,
            table=self._table,
            plan=self._plan,
            order=self._order,
            count=self._batch_rows,
            stride=self._world_size,
        )
        rows = rows_in_order(
            firsts,
            task,
            num_cpus=self._cpus_per_task,
            concurrency=self._concurrency,
            store_bytes=_STORE_BYTES,
        )
        yield from map(_item, rows)


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
    for row in table.read(rows):
        try:
            prompts.append(renderer.render(row, position=row.index))
        except RowError as err:
            if dropped is None:
                raise DataError(f"{spec}: {err}") from err
            logger.warning("dropped (%s): %s", err.reason, err)
            dropped.setdefault(err.reason, []).append(row.index)
    if not prompts:
        raise DataError(f"none of the first {len(rows)} rows of {spec} can be used: {dropped}")
    return prompts


@dataclass(frozen=True, slots=True, kw_only=True)
class _Good:
    position: int
    prompt: bytes
    """Pickled, so that a block in the object store is plain bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bad:
    position: int
    row: int
    reason: str
    message: str


_Item = _Good | _Bad

# What a task says in place of a drop reason when no row can be read. Raised inside the task, the
# error would reach the log as a page of Ray's traceback.
_UNREADABLE = "unreadable"

_BLOCK_SCHEMA = pa.schema(
    [
        ("position", pa.int64()),
        ("row", pa.int64()),
        ("prompt", pa.large_binary()),
        ("reason", pa.string()),
        ("message", pa.string()),
    ]
)


def _item(cells: dict[str, Any]) -> _Item:
    if cells["reason"] == _UNREADABLE:
        raise DataError(cells["message"])
    if cells["prompt"] is not None:
        return _Good(position=cells["position"], prompt=cells["prompt"])
    return _Bad(
        position=cells["position"],
        row=cells["row"],
        reason=cells["reason"],
        message=cells["message"],
    )


def _render(
    table: PromptTable, renderer: PromptRenderer, order: PromptOrder, positions: Sequence[int]
) -> list[_Item]:
    items: list[_Item] = []
    for position, row in zip(positions, table.read(order.rows(positions)), strict=True):
        try:
            prompt = renderer.render(row, position=position)
        except RowError as err:
            items.append(
                _Bad(position=position, row=row.index, reason=err.reason, message=str(err))
            )
        else:
            items.append(_Good(position=position, prompt=pickle.dumps(prompt)))
    return items


def _render_task(
    batch: dict[str, np.ndarray],
    *,
    table: PromptTable,
    plan: ray.ObjectRef,
    order: PromptOrder,
    count: int,
    stride: int,
) -> pa.Table:
    """One Ray Data task: render `count` positions, `stride` apart, from each first one."""
    positions = [int(first) + i * stride for first in batch["item"] for i in range(count)]
    try:
        items = _render(table, _renderer(plan), order, positions)
    except DataError as err:
        rows = [{"position": positions[0], "reason": _UNREADABLE, "message": str(err)}]
    else:
        rows = [
            {"position": i.position, "prompt": i.prompt}
            if isinstance(i, _Good)
            else {"position": i.position, "row": i.row, "reason": i.reason, "message": i.message}
            for i in items
        ]
    return pa.Table.from_pylist(rows, schema=_BLOCK_SCHEMA)


@lru_cache(maxsize=2)
def _renderer(plan: ray.ObjectRef) -> PromptRenderer:
    """One renderer a process; a worker process serves many tasks."""
    fetched: RenderPlan = ray.get(plan)
    return PromptRenderer(fetched)


@lru_cache(maxsize=2)
def _permutation(seed: int, epoch: int, num_rows: int) -> np.ndarray:
    """[num_rows] the order of one epoch; two are kept, since a batch may cross epochs."""
    return np.random.default_rng(derive_seed(seed, "epoch", epoch)).permutation(num_rows)
