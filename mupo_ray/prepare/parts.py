"""Parts of a source prepared in order: in this process, or by Ray Data tasks on all cores.

    parts --from_items--> Ray Data tasks: read, decode, compare, store pictures
                              |  rows without pixels, in the order of parts
                              v
    thread -> bounded queue -> this process, which writes the table

What comes out does not depend on how many tasks there are.
"""

from __future__ import annotations

import os
import pickle
import queue
import threading
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from mupo_ray.errors import DataError, cause_of
from mupo_ray.prepare.contamination import ContaminationIndex
from mupo_ray.prepare.rows import PartResult, RowPlan, RowPreparer
from mupo_ray.prepare.sources import Part

if TYPE_CHECKING:
    import numpy as np
    import ray

# Parts below which starting Ray takes longer than it saves.
_MIN_PARTS_FOR_RAY = 32
# Ray Data's own limit keeps the number of tasks; a whole CPU each could wait for one on a full
# cluster.
_CPUS_PER_TASK = 0.1
_STORE_BYTES = 64 * 2**20
_QUEUE_PARTS = 8
_BLOCK_SCHEMA = pa.schema([("result", pa.large_binary()), ("failure", pa.string())])


def workers_for(parts: Sequence[Part], asked: int | None) -> int:
    """How many tasks to run at a time; 1 means without Ray.

    Args:
        parts: what there is to do.
        asked: a user's own number, None to choose.
    """
    if asked is not None:
        return max(1, min(asked, len(parts)))
    return 1 if len(parts) < _MIN_PARTS_FOR_RAY else min(os.cpu_count() or 1, len(parts))


def prepare_parts(
    plan: RowPlan,
    index: ContaminationIndex | None,
    *,
    workers: int,
    timeout_s: float,
) -> Iterator[PartResult]:
    """Prepare all parts of the plan's source, and yield what became of each, in order.

    Args:
        plan: what to do with each row.
        index: evaluation rows to search for.
        workers: tasks at a time; 1 works in this process, without Ray.
        timeout_s: longest wait for one part, where there are tasks.

    Raises:
        DataError: a file cannot be read any more, or no part was done in time.
    """
    if workers == 1:
        preparer = RowPreparer(plan, index)
        for part in plan.source.parts:
            yield preparer.prepare(part)
        return
    from mupo_ray.placement.connect import join_or_start

    join_or_start({"num_cpus": workers, "include_dashboard": False}, log_to_driver=False)
    done: queue.Queue[PartResult | BaseException | None] = queue.Queue(maxsize=_QUEUE_PARTS)
    stop = threading.Event()
    feeder = threading.Thread(
        target=_feed, args=(plan, index, workers, done, stop), name="part-feeder", daemon=True
    )
    feeder.start()
    try:
        while (result := _next(done, timeout_s)) is not None:
            yield result
    finally:
        stop.set()


def _next(
    done: queue.Queue[PartResult | BaseException | None], timeout_s: float
) -> PartResult | None:
    try:
        result = done.get(timeout=timeout_s)
    except queue.Empty:
        import ray

        free = ray.available_resources().get("CPU", 0.0)
        raise DataError(
            f"no part of the source was prepared within {timeout_s:g} s: tasks need "
            f"{_CPUS_PER_TASK:g} CPU each, the cluster has {free:g} free"
        ) from None
    if isinstance(result, DataError):
        raise result
    if isinstance(result, BaseException):
        raise DataError(f"preparing rows failed: {cause_of(result)}") from result
    return result


def _feed(
    plan: RowPlan,
    index: ContaminationIndex | None,
    workers: int,
    done: queue.Queue[PartResult | BaseException | None],
    stop: threading.Event,
) -> None:
    """Thread: run the pipeline and hand on what comes out, then None or the error."""
    try:
        for result in _pipeline(plan, index, workers):
            if not _put(done, result, stop):
                return
        _put(done, None, stop)
    except BaseException as err:  # Raised again in the thread that waits for it.
        _put(done, err, stop)


def _put(
    done: queue.Queue[PartResult | BaseException | None],
    result: PartResult | BaseException | None,
    stop: threading.Event,
) -> bool:
    while not stop.is_set():
        try:
            done.put(result, timeout=0.1)
        except queue.Full:
            continue
        return True
    return False


def _pipeline(
    plan: RowPlan, index: ContaminationIndex | None, workers: int
) -> Iterator[PartResult]:
    import ray

    from mupo_ray.data.ray_rows import rows_in_order

    shared = ray.put((plan, index))
    parts = range(len(plan.source.parts))
    rows = rows_in_order(
        parts,
        partial(_task, shared=shared),
        num_cpus=_CPUS_PER_TASK,
        concurrency=workers,
        store_bytes=_STORE_BYTES,
    )
    for cells in rows:
        if cells["failure"] is not None:
            raise DataError(cells["failure"])
        result: PartResult = pickle.loads(cells["result"])
        yield result


def _task(batch: dict[str, np.ndarray], *, shared: ray.ObjectRef) -> pa.Table:
    """One Ray Data task: prepare the parts of these numbers."""
    plan, preparer = _preparer(shared)
    rows: list[dict[str, Any]] = []
    for number in batch["item"]:
        try:
            result = preparer.prepare(plan.source.parts[int(number)])
        except DataError as err:
            rows.append({"failure": str(err)})
        else:
            rows.append({"result": pickle.dumps(result)})
    return pa.Table.from_pylist(rows, schema=_BLOCK_SCHEMA)


@lru_cache(maxsize=1)
def _preparer(shared: ray.ObjectRef) -> tuple[RowPlan, RowPreparer]:
    """One preparer a process; a worker process serves many tasks."""
    import ray

    plan, index = ray.get(shared)
    return plan, RowPreparer(plan, index)
