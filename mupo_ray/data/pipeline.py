"""Rows made by Ray Data tasks, in order, ahead of need, on a cluster with hardly a CPU to spare.

    items --(256 a pipeline)--> Ray Data tasks: item -> rows     (other processes)
                                     |  in the order of the items
                                     v
                  feeder thread -> bounded queue -> next()       (this process)

A full queue holds up the thread, a waiting thread leaves blocks in the object store, and once these
are too many Ray Data starts no task. So little more is made than is read, however many items there
are, and what comes out does not depend on how many tasks run.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import ray
import ray.data
from ray.data._internal.execution.execution_callback import ExecutionCallback

from mupo_ray.errors import DataError, cause_of

logger = logging.getLogger(__name__)

Task = Callable[[int], Iterable[dict[str, Any]]]
"""Makes the rows of one item."""

# Tasks of one Ray Data pipeline: planning costs grow with them, pauses between pipelines shrink.
_TASKS_PER_PIPELINE = 256
_STORE_BYTES = 256 * 2**20
_STEP_S = 0.05


class InOrder(Iterator[dict[str, Any]]):
    """The rows of each item, one after the other."""

    def __init__(
        self,
        items: Iterable[int],
        make_task: Callable[[], Task],
        schema: pa.Schema,
        *,
        name: Callable[[int], str],
        cpus_per_task: float = 0.1,
        concurrency: int = 2,
        ahead: int = 64,
        timeout_s: float = 300.0,
    ) -> None:
        """Start making rows; Ray must be up.

        Args:
            items: what tasks are about, one each; may be endless.
            make_task: called once in each process that runs tasks; stored once for all of them.
            schema: columns of the rows; one that a row lacks is null.
            name: what the row of a number, from 0, is called in errors.
            cpus_per_task: CPU share that one task reserves.
            concurrency: tasks at a time.
            ahead: rows that are held ready in this process.
            timeout_s: longest wait for one row.
        """
        self._name = name
        self._cpus_per_task = cpus_per_task
        self._concurrency = concurrency
        self._timeout_s = timeout_s
        self._num_passed = 0
        self._end: BaseException | None = None
        self._queue: queue.Queue[dict[str, Any] | BaseException] = queue.Queue(maxsize=ahead)
        self._stop = threading.Event()
        whole = schema.append(pa.field("failure", pa.string()))
        run = partial(_run, make_task=ray.put(make_task), schema=whole)
        self._thread = threading.Thread(
            target=self._feed, args=(iter(items), run), name="row-feeder", daemon=True
        )
        self._thread.start()

    def __next__(self) -> dict[str, Any]:
        """The next row.

        Raises:
            DataError: it did not come in time, or could not be made; again at each further call.
        """
        if self._end is not None:
            raise self._end
        try:
            row = self._queue.get(timeout=self._timeout_s)
        except queue.Empty:
            free = ray.available_resources().get("CPU", 0.0)
            row = DataError(
                f"no {self._name(self._num_passed)} within {self._timeout_s:g} s: waiting for a "
                f"Ray Data task that needs {self._cpus_per_task:g} CPU, the cluster has {free:g} "
                "free"
            )
        if isinstance(row, BaseException):
            # Rows may be lost on the way, so that none behind them can be had.
            self._end = row
            if not isinstance(row, DataError | StopIteration):
                self._end = DataError(f"no {self._name(self._num_passed)}: {cause_of(row)}")
                self._end.__cause__ = row
            raise self._end
        self._num_passed += 1
        return row

    def close(self) -> None:
        """Stop making rows."""
        self._stop.set()
        # It may be waiting for a task that the cluster has no room for; being a daemon, it can.
        self._thread.join(timeout=5.0)

    def _feed(self, items: Iterator[int], run: Callable[..., pa.Table]) -> None:
        """Thread: run one pipeline after the other, and hand on what comes out."""
        try:
            while chunk := list(islice(items, _TASKS_PER_PIPELINE)):
                for row in self._pipeline(chunk, run):
                    if not self._hand_on(row):
                        return
            self._hand_on(StopIteration())
        except BaseException as err:  # Raised again in the thread that waits for it.
            self._hand_on(err)

    def _hand_on(self, row: dict[str, Any] | BaseException) -> bool:
        """Wait for room in the queue; False where reading has ended meanwhile."""
        while not self._stop.is_set():
            try:
                self._queue.put(row, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def _pipeline(
        self, items: Sequence[int], run: Callable[..., pa.Table]
    ) -> Iterator[dict[str, Any]]:
        # Not ray.data.range: each of its own tasks would need a whole free CPU.
        dataset = ray.data.from_items(items, override_num_blocks=len(items)).map_batches(
            run,
            batch_size=None,
            num_cpus=self._cpus_per_task,
            compute=ray.data.TaskPoolStrategy(size=self._concurrency),
        )
        context = dataset.context
        context.execution_options.preserve_order = True
        context.execution_options.resource_limits = ray.data.ExecutionResources.for_limits(
            object_store_memory=_STORE_BYTES
        )
        context.custom_execution_callback_classes = [Paced]
        context.enable_progress_bars = False
        context.print_on_execution_start = False
        # Advice on memory that no one asked for, in the middle of the run's own lines.
        context.issue_detectors_config.detectors = []
        # Lines at every pipeline's start and end, that the progress bar is off, and that no CPU is
        # left over: Ray Data then runs one task at a time, which is enough.
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        # Its prefetching adds nothing to a thread that reads ahead of need.
        for block in dataset.iter_batches(
            batch_size=None, batch_format="pyarrow", prefetch_batches=0
        ):
            for row in block.to_pylist():
                if (failure := row.pop("failure")) is not None:
                    raise DataError(failure)
                yield row


class Paced(ExecutionCallback):  # type: ignore[misc]
    """Lets Ray Data's scheduling loop turn at most 20 times a second.

    While results wait for a slow reader the loop has nothing to wait for itself (Ray 2.60): it
    turns without pause, and takes a core and the lock of the process that trains.
    """

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._now, self._sleep = now, sleep
        self._last = now()

    def on_execution_step(self, executor: Any) -> None:
        """Wait until a turn is due; Ray Data calls it in each."""
        self._sleep(max(0.0, self._last + _STEP_S - self._now()))
        self._last = self._now()


def _run(batch: dict[str, np.ndarray], *, make_task: ray.ObjectRef, schema: pa.Schema) -> pa.Table:
    """One Ray Data task: the rows of its items, or why there are none."""
    try:
        task = _task(make_task)
        rows = [row for item in batch["item"] for row in task(int(item))]
    except DataError as err:
        # Raised here, the error would reach the log as a page of Ray's traceback.
        rows = [{"failure": str(err)}]
    except Exception as err:
        # Raised here, it would arrive as `UDF failed to process a data block` (Ray 2.60).
        logger.exception("item %s", batch["item"])
        rows = [{"failure": f"a Ray Data task failed: {type(err).__name__}: {err}"}]
    return pa.Table.from_pylist(rows, schema=schema)


@lru_cache(maxsize=2)
def _task(make_task: ray.ObjectRef) -> Task:
    """One task function a process; a worker process runs it many times."""
    made: Task = ray.get(make_task)()
    return made
