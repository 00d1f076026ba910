"""Rows of Ray Data tasks, in order, from a cluster that has hardly a CPU to spare."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import ray.data
from ray.data._internal.execution.execution_callback import ExecutionCallback

_STEP_S = 0.05


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


def rows_in_order(
    items: Sequence[int],
    task: Callable[[dict[str, np.ndarray]], pa.Table],
    *,
    num_cpus: float,
    concurrency: int,
    store_bytes: int,
) -> Iterator[dict[str, Any]]:
    """Run one task an item and yield the rows of its table, item after item.

    Args:
        items: what tasks are about; a task gets one as `batch["item"]`.
        task: makes a table.
        num_cpus: CPU share that one task reserves.
        concurrency: tasks at a time.
        store_bytes: results that may lie in the object store.
    """
    # Not ray.data.range: each of its own tasks would need a whole free CPU.
    dataset = ray.data.from_items(list(items), override_num_blocks=len(items))
    dataset = dataset.map_batches(
        task,
        batch_size=None,
        num_cpus=num_cpus,
        compute=ray.data.TaskPoolStrategy(size=concurrency),
    )
    context = dataset.context
    context.execution_options.preserve_order = True
    context.execution_options.resource_limits = ray.data.ExecutionResources.for_limits(
        object_store_memory=store_bytes
    )
    context.custom_execution_callback_classes = [Paced]
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    # Advice on memory that no one asked for, in the middle of the run's own lines.
    context.issue_detectors_config.detectors = []
    # Lines at every pipeline's start and end, that the progress bar is off, and that no CPU is left
    # over: Ray Data then runs one task at a time, which is enough.
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    # Its prefetching adds nothing to a caller that reads ahead of need.
    for block in dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
        yield from block.to_pylist()
