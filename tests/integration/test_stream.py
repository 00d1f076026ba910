"""The prompt stream on a real Ray: order, resume, ranks, bad rows, failures."""

from __future__ import annotations

import io
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
from PIL import Image

from mupo_ray.core.seeding import derive_seed
from mupo_ray.data import stream as stream_module
from mupo_ray.data.chat import ChatRenderer
from mupo_ray.data.pipeline import Paced
from mupo_ray.data.render import PromptRenderer
from mupo_ray.data.stream import Dropped, PromptOrder, PromptStream, iter_prompts, load_prompts
from mupo_ray.data.table import PromptTable, open_table
from mupo_ray.demo.tiny_model import build_processor
from mupo_ray.errors import DataError

pytestmark = pytest.mark.usefixtures("ray_local")

SCHEMA = pa.schema(
    [
        ("problem", pa.string()),
        ("images", pa.list_(pa.struct([("bytes", pa.binary()), ("path", pa.string())]))),
        ("answer", pa.string()),
        ("id", pa.string()),
    ]
)


def picture(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (84, 84, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def rows(count: int) -> list[dict]:
    return [
        {
            "problem": "<image>missing number ?",
            "images": [{"bytes": picture(i), "path": None}],
            "answer": str(i % 9 + 1),
            "id": str(i),
        }
        for i in range(count)
    ]


def write(folder: Path, cells: list[dict]) -> PromptTable:
    """Two files and several row groups, so that rows lie apart."""
    half = len(cells) // 2
    for name, part in (("a", cells[:half]), ("b", cells[half:])):
        table = pa.Table.from_pylist(part, schema=SCHEMA)
        pq.write_table(table, folder / f"{name}.parquet", row_group_size=3)
    return open_table(folder)


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> PromptRenderer:
    folder = tmp_path_factory.mktemp("model")
    build_processor().save_pretrained(folder)
    return PromptRenderer.from_pretrained(str(folder), max_prompt_tokens=64)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> PromptTable:
    return write(tmp_path_factory.mktemp("rows"), rows(20))


def read(
    table: PromptTable, renderer: PromptRenderer, steps: list[int], **options: int
) -> tuple[list[list[str]], PromptStream]:
    """Ids of the rows of each step."""
    stream = PromptStream(table, renderer, seed=0, batch_rows=3, timeout_s=120, **options)
    try:
        return [[p.meta["id"] for p in stream.next(n)] for n in steps], stream
    finally:
        stream.close()


def expected_ids(first: int, count: int) -> list[str]:
    """The order as the docstring of the module defines it, for 20 rows and seed 0."""
    return [
        str(np.random.default_rng(derive_seed(0, "epoch", p // 20)).permutation(20)[p % 20])
        for p in range(first, first + count)
    ]


def test_d06_resumed_runs_read_the_same_ids_as_an_unbroken_one(table, renderer) -> None:
    whole, _ = read(table, renderer, [4] * 12)
    assert sum(whole, []) == expected_ids(0, 48)
    for epoch in (0, 20):
        assert Counter(sum(whole, [])[epoch : epoch + 20]) == Counter(map(str, range(20)))
    assert sum(whole, [])[:20] != sum(whole, [])[20:40]

    pieces: list[list[str]] = []
    position = 0
    for steps in (2, 2, 1, 7):  # Resumed in an epoch, again in it, and over two ends of one.
        part, stream = read(table, renderer, [4] * steps, position=position)
        pieces += part
        position = stream.position
    assert pieces == whole
    assert position == 48


def test_step_sizes_may_vary_and_ray_data_keeps_its_pace(table, renderer, monkeypatch) -> None:
    turns: list[float] = []
    keep_pace = Paced.on_execution_step

    def turn(self: Paced, executor: object) -> None:
        keep_pace(self, executor)
        turns.append(time.monotonic())

    monkeypatch.setattr(Paced, "on_execution_step", turn)
    steps, stream = read(table, renderer, [1, 7, 3, 14])
    assert [len(step) for step in steps] == [1, 7, 3, 14]
    assert sum(steps, []) == expected_ids(0, 25)
    assert stream.position == 25
    assert turns


@pytest.mark.parametrize("rank", [0, 1])
def test_nothing_is_read_beyond_the_end(table, renderer, rank) -> None:
    stream = PromptStream(
        table, renderer, seed=0, batch_rows=3, end=8, rank=rank, world_size=2, timeout_s=120
    )
    try:
        assert [p.position for p in stream.next(8)] == list(range(rank, 8, 2))
        stream._items._thread.join(timeout=60)
        assert not stream._items._thread.is_alive()
        # Tasks render whole batches of 3: of this rank 4 positions were asked for, 6 rendered. The
        # third that waits is the end.
        assert stream._items._queue.qsize() == 3
        with pytest.raises(ValueError, match="positions 8 to 9 .* ends at 8"):
            stream.next(1)
    finally:
        stream.close()


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_share_the_sequence_of_one(table, renderer, world_size) -> None:
    sizes = [4, 5, 16, 3]
    shares = [
        read(table, renderer, sizes, rank=rank, world_size=world_size)[0]
        for rank in range(world_size)
    ]
    first = 0
    for step, size in enumerate(sizes):
        union = [i for share in shares for i in share[step]]
        assert Counter(union) == Counter(expected_ids(first, size))
        lengths = [len(share[step]) for share in shares]
        assert max(lengths) - min(lengths) <= 1
        first += size


def test_another_number_of_workers_goes_on_where_the_first_stopped(table, renderer) -> None:
    _, stream = read(table, renderer, [7])
    rest = [
        read(table, renderer, [6], position=stream.position, rank=r, world_size=2)[0][0]
        for r in range(2)
    ]
    assert Counter(sum(rest, [])) == Counter(expected_ids(7, 6))


def test_prompts_are_the_rendered_rows(table, renderer) -> None:
    stream = PromptStream(table, renderer, seed=0)
    prompts = stream.next(3)
    stream.close()
    wanted = table.read(PromptOrder(num_rows=20, seed=0).rows([0, 1, 2]))
    assert prompts == [renderer.render(row, position=i) for i, row in enumerate(wanted)]


def test_bad_rows_are_left_out_and_counted(tmp_path, renderer) -> None:
    cells = rows(20)
    cells[3]["images"][0]["bytes"] = picture(3)[:400]
    cells[8]["problem"] = "<image><image>missing number ?"
    cells[11]["problem"] = "<image>" + "number " * 80
    cells[12]["answer"] = " "
    cells[19]["images"] = [{"bytes": None, "path": "gone.png"}]
    table = write(tmp_path, cells)
    whole, stream = read(table, renderer, [5, 5, 5, 5, 20])
    dropped = {
        "broken_image": [3],
        "placeholders": [8],
        "too_long": [11],
        "empty_answer": [12],
        "missing_image": [19],
    }
    assert stream.dropped == {reason: index * 2 for reason, index in dropped.items()}
    assert stream.position == 40
    bad = {"3", "8", "11", "12", "19"}
    for step, first in zip(whole, (0, 5, 10, 15, 20), strict=True):
        count = 20 if first == 20 else 5
        assert step == [i for i in expected_ids(first, count) if i not in bad]

    halves = [read(table, renderer, [5] * 4, rank=r, world_size=2) for r in range(2)]
    for step in range(4):
        assert Counter(halves[0][0][step] + halves[1][0][step]) == Counter(whole[step])
    both = Counter(i for _, s in halves for index in s.dropped.values() for i in index)
    assert both == Counter(map(int, bad))


def test_all_rows_bad_is_an_error_on_every_rank(tmp_path, renderer) -> None:
    cells = rows(6)
    for cell in cells:
        cell["answer"] = ""
    table = write(tmp_path, cells)
    for rank in range(2):
        with pytest.raises(DataError, match=r"none of the 6 rows tried.*empty_answer: 6"):
            read(table, renderer, [2], rank=rank, world_size=2)


def test_a_rank_of_bad_luck_goes_on_without_prompts(tmp_path, renderer) -> None:
    cells = rows(6)
    good = PromptOrder(num_rows=6, seed=0).rows([1])[0]  # Position 1 is rank 1's.
    for index, cell in enumerate(cells):
        if index != good:
            cell["answer"] = ""
    table = write(tmp_path, cells)
    for rank, expected in enumerate([[], [str(good)]]):
        steps, _ = read(table, renderer, [2], rank=rank, world_size=2)
        assert steps == [expected]


def test_a_file_that_vanishes_ends_in_one_message(tmp_path, renderer) -> None:
    table = write(tmp_path, rows(20))
    (tmp_path / "b.parquet").unlink()
    stream = PromptStream(table, renderer, seed=0, timeout_s=120)
    with pytest.raises(DataError, match=r"cannot read .*b\.parquet") as caught:
        stream.next(20)
    assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match=r"cannot read .*b\.parquet"):
        stream.next(1)
    stream.close()


def test_a_tenth_of_a_cpu_is_enough(table, renderer) -> None:
    @ray.remote(num_cpus=1.9)
    class Trainer:
        def hold(self) -> None:
            pass

    trainer = Trainer.remote()
    ray.get(trainer.hold.remote())
    try:
        assert read(table, renderer, [4])[0] == [expected_ids(0, 4)]
    finally:
        ray.kill(trainer)


def test_waiting_for_a_cpu_that_never_comes_ends_in_time(table, renderer) -> None:
    stream = PromptStream(table, renderer, seed=0, cpus_per_task=64, timeout_s=3)
    with pytest.raises(DataError, match=r"position 0 .* within 3 s.*needs 64 CPU, .* has .* free"):
        stream.next(1)
    stream.close()


def test_close_leaves_no_thread_and_no_task_behind(table, renderer) -> None:
    before, free = set(threading.enumerate()), ray.available_resources()["CPU"]
    stream = PromptStream(table, renderer, seed=0, prefetch_prompts=2)
    stream.next(2)
    stream.close()
    with pytest.raises(DataError, match="closed"):
        stream.next(1)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        # Ray Data itself parks one idle thread of this name for every iteration that is cut short.
        left = {t for t in set(threading.enumerate()) - before if t.name != "Prefetcher"}
        if not left and ray.available_resources()["CPU"] >= free:
            return
        time.sleep(0.2)
    raise AssertionError(f"left behind: {left}, {ray.available_resources()}")


def test_tasks_give_a_set_as_this_process_does(tmp_path, renderer, monkeypatch) -> None:
    cells = rows(40)
    cells[17]["answer"] = ""
    cells[20]["problem"], cells[20]["images"] = "in words alone", []
    table = write(tmp_path, cells)
    for asker in (renderer, ChatRenderer(template="{problem}", system_prompt=None)):
        here = list(iter_prompts(table, asker, 35))
        monkeypatch.setattr(stream_module, "_MIN_ROWS_FOR_RAY", 0)
        by_tasks = iter_prompts(table, asker, 35)
        assert list(by_tasks) == here
        monkeypatch.undo()
    assert [item.position for item in here] == list(range(35))
    assert here[17] == Dropped(
        position=17,
        row=17,
        reason="empty_answer",
        message="row 17: answer is empty, nothing can be right",
    )


def test_load_prompts_reads_the_first_rows(tmp_path, renderer) -> None:
    cells = rows(6)
    cells[1]["answer"] = ""
    write(tmp_path, cells)
    with pytest.raises(DataError, match="row 1: answer is empty"):
        load_prompts(tmp_path, renderer, 4)
    dropped: dict[str, list[int]] = {}
    prompts = load_prompts(tmp_path, renderer, 4, dropped=dropped)
    assert [(p.position, p.meta["id"]) for p in prompts] == [(0, "0"), (2, "2"), (3, "3")]
    assert dropped == {"empty_answer": [1]}
    assert len(load_prompts(tmp_path / "b.parquet", renderer)) == 3
    with pytest.raises(DataError, match="does not exist"):
        load_prompts(tmp_path / "c.parquet", renderer)
