"""The pace of Ray Data's loop by a clock that only sleeping and work move, and a task's rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import ray

from mupo_ray.data.pipeline import Paced, Task, _run
from mupo_ray.errors import DataError


class Clock:
    def __init__(self) -> None:
        self.time_s = 100.0

    def now(self) -> float:
        return self.time_s

    def pass_by(self, seconds: float) -> None:
        assert seconds >= 0
        self.time_s += seconds


@pytest.mark.parametrize(
    ("work_s", "turns"),
    # At most 20 turns a second, the work of a turn included; a loop that has more to do than that
    # is not held up.
    [(0.0, 20), (0.001, 20), (0.04, 20), (0.1, 10), (0.5, 2)],
)
def test_the_loop_turns_20_times_a_second_at_most(work_s: float, turns: int) -> None:
    clock = Clock()
    paced = Paced(clock.now, clock.pass_by)
    seconds, counted = 10, 0
    while clock.time_s < 100.0 + seconds - 1e-6:
        clock.pass_by(work_s)
        paced.on_execution_step(None)
        counted += 1
        assert counted <= 21 * seconds, "the loop turns without pause"
    assert counted == turns * seconds


def test_a_task_gives_rows_or_why_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = {1: DataError("no such file"), 2: KeyError("k")}

    def make_task() -> Task:
        def task(item: int) -> list[dict[str, int]]:
            if item in errors:
                raise errors[item]
            return [{"item": item}] * item

        return task

    monkeypatch.setattr(ray, "get", lambda stored: stored)
    schema = pa.schema([("item", pa.int64()), ("failure", pa.string())])
    tables = [
        _run({"item": np.array(items)}, make_task=make_task, schema=schema).to_pylist()
        for items in ([0, 3], [3, 1], [2])
    ]
    assert tables == [
        [{"item": 3, "failure": None}] * 3,
        [{"item": None, "failure": "no such file"}],
        [{"item": None, "failure": "a Ray Data task failed: KeyError: 'k'"}],
    ]
