"""The prompts of an evaluation set, once each and in order, read as they are needed.

rows 0 1 2 ... --(few: here; many: Ray Data tasks, ahead of need)--> prompts, or why not
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from mupo_ray.data.render import PromptRenderer, RenderPlan
from mupo_ray.data.table import Row, RowError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np

    from mupo_ray.data.chat import ChatRenderer
    from mupo_ray.data.table import PromptTable
    from mupo_ray.types import Prompt

# Rows below which starting tasks takes longer than it saves.
_MIN_ROWS_FOR_RAY = 512
_TASK_ROWS = 16
_STORE_BYTES = 256 * 2**20
_BLOCK_SCHEMA = pa.schema([("item", pa.large_binary())])


class RowRenderer(Protocol):
    """Makes prompts of rows."""

    def render(self, row: Row, *, position: int) -> Prompt:
        """The prompt of one row; `RowError` where it cannot be used."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """A row that cannot be asked."""

    row: int
    reason: str
    message: str


def iter_prompts(
    table: PromptTable,
    renderer: PromptRenderer | ChatRenderer,
    limit: int | None = None,
    *,
    cpus_per_task: float = 0.1,
    concurrency: int = 2,
) -> Iterator[Prompt | Dropped]:
    """The first rows of a table as prompts, each with its row's number as position.

    Args:
        table: where the rows are.
        renderer: makes prompts of them.
        limit: rows to read from the start; None reads all.
        cpus_per_task: CPU share that one Ray Data task reserves, where there are many rows.
        concurrency: tasks at a time.

    Raises:
        DataError: a file cannot be read any more.
    """
    count = table.num_rows if limit is None else min(limit, table.num_rows)
    firsts = range(0, count, _TASK_ROWS)
    if count < _MIN_ROWS_FOR_RAY:
        for first in firsts:
            yield from _render(table, renderer, range(first, min(first + _TASK_ROWS, count)))
        return
    import ray

    from mupo_ray.data.ray_rows import rows_in_order

    plan = renderer.plan if isinstance(renderer, PromptRenderer) else renderer
    rows = rows_in_order(
        firsts,
        partial(_task, table=table, plan=ray.put(plan), count=count),
        num_cpus=cpus_per_task,
        concurrency=concurrency,
        store_bytes=_STORE_BYTES,
    )
    for cells in rows:
        item: Prompt | Dropped = pickle.loads(cells["item"])
        yield item


def _render(
    table: PromptTable, renderer: RowRenderer, rows: Sequence[int]
) -> Iterator[Prompt | Dropped]:
    for row in table.read(rows):
        try:
            yield renderer.render(row, position=row.index)
        except RowError as err:
            yield Dropped(row=row.index, reason=err.reason, message=str(err))


def _task(batch: dict[str, np.ndarray], *, table: PromptTable, plan: Any, count: int) -> pa.Table:
    """One Ray Data task: the rows from each first one on."""
    items = [
        {"item": pickle.dumps(item)}
        for first in batch["item"]
        for item in _render(
            table, _renderer(plan), range(int(first), min(int(first) + _TASK_ROWS, count))
        )
    ]
    return pa.Table.from_pylist(items, schema=_BLOCK_SCHEMA)


@lru_cache(maxsize=2)
def _renderer(plan: Any) -> RowRenderer:
    """One renderer a process; a worker process serves many tasks."""
    import ray

    found: RenderPlan | ChatRenderer = ray.get(plan)
    return PromptRenderer(found) if isinstance(found, RenderPlan) else found
