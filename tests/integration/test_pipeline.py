"""Rows of Ray Data tasks on a real Ray: their order, their end, and what goes wrong in a task."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pyarrow as pa
import pytest

from mupo_ray.data.pipeline import InOrder, Task
from mupo_ray.errors import DataError

pytestmark = pytest.mark.usefixtures("ray_local")

SCHEMA = pa.schema([("item", pa.int64()), ("copy", pa.int64())])


def in_order(items: Any, make_task: Callable[[], Task]) -> InOrder:
    return InOrder(items, make_task, SCHEMA, name=lambda number: f"row {number}", timeout_s=120)


def copies() -> Task:
    def task(item: int) -> Iterator[dict[str, int]]:
        if item == 0:
            time.sleep(1.0)  # The others are done meanwhile.
        return ({"item": item, "copy": i} for i in range(item % 3))

    return task


def test_rows_come_in_the_order_of_items_however_many_each_gives() -> None:
    rows = in_order([4, 0, 2, 3, 5, 1], copies)
    pairs = [(row["item"], row["copy"]) for row in rows]
    assert pairs == [(4, 0), (2, 0), (2, 1), (5, 0), (5, 1), (1, 0)]
    with pytest.raises(StopIteration):
        next(rows)
    rows.close()


def test_items_may_be_endless() -> None:
    rows = in_order(count(1, 3), copies)
    assert [next(rows)["item"] for _ in range(5)] == [1, 4, 7, 10, 13]
    rows.close()


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (DataError("no such file"), "no such file"),
        (KeyError("k"), "a Ray Data task failed: KeyError: 'k'"),
    ],
)
def test_an_error_in_a_task_comes_in_its_place_and_stays(error: Exception, message: str) -> None:
    def make_task() -> Task:
        def task(item: int) -> list[dict[str, int]]:
            if item == 1:
                raise error
            return [{"item": item}]

        return task

    rows = in_order(range(3), make_task)
    assert next(rows) == {"item": 0, "copy": None}
    for _ in range(2):
        with pytest.raises(DataError, match=f"^{message}$"):
            next(rows)
    rows.close()
