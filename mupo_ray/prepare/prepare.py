"""A source as a folder that training reads: a table, its pictures and a report.

    OUT/data.parquet     prompt_id, problem, images, answer, options, category, source, the rest
    OUT/images/3f/...    each picture once
    OUT/report.json      what became of each row

    parts of the source --RowPreparer: read, decode, compare, store pictures--> rows --> table

Where there are many parts Ray Data tasks prepare them on all cores (`InOrder`); a task hands back
rows without pixels. The folder appears whole or not at all, and is the same, byte for byte, for the
same input, however many tasks there are.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from mupo_ray.data.render import PromptRenderer, RenderPlan
from mupo_ray.errors import DataError
from mupo_ray.prepare.column_maps import passed_columns, resolve_columns
from mupo_ray.prepare.contamination import ContaminationIndex
from mupo_ray.prepare.eval_sets import EvalSet, load_eval_sets
from mupo_ray.prepare.image_store import IMAGE_FOLDER
from mupo_ray.prepare.report import PrepareReport
from mupo_ray.prepare.rows import PartResult, RowPlan, RowPreparer, table_schema
from mupo_ray.prepare.sources import Part, open_source

if TYPE_CHECKING:
    from mupo_ray.data.pipeline import Task

TABLE_FILE = "data.parquet"
REPORT_FILE = "report.json"

_ROWS_PER_GROUP = 512
# Parts below which starting Ray takes longer than it saves.
_MIN_PARTS_FOR_RAY = 32
_PARTS_AHEAD = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareConfig:
    """What to prepare and how."""

    source: str
    """As `find_source_files` takes it."""
    out: Path
    """Folder to write."""
    mapping: str = "generic"
    """Name of a ready mapping of columns."""
    columns: tuple[str, ...] = ()
    """The user's own words on columns: `problem=question`."""
    image_root: Path | None = None
    """Folder that image paths start from; that of the file which names them where None."""
    against: tuple[str, ...] = ()
    """Evaluation sets whose rows must not be trained on."""
    removes_contaminated: bool = True
    """Whether such rows are removed, or only reported."""
    is_strict: bool = False
    """Whether a dropped row is an error."""
    overwrites: bool = False
    """Whether `out` may exist."""
    workers: int | None = None
    """Tasks at a time; 1 works without Ray, None chooses by the number of rows."""
    timeout_s: float = 600.0
    """Longest wait for one task."""
    model: str | None = None
    """Model whose tokens count for `max_prompt_tokens`."""
    template: str = "plain"
    """Prompt template for that count."""
    max_prompt_tokens: int | None = None
    """Longest prompt that is kept; needs `model`."""


def prepare(config: PrepareConfig) -> PrepareReport:
    """Prepare a source.

    Returns:
        What became of each row.

    Raises:
        DataError: the source or an evaluation set cannot be read, no row can be used, `out`
            exists, or a row was dropped though the config is strict. Nothing is written then.
    """
    out = config.out.expanduser().absolute()
    if out.exists() and not config.overwrites:
        raise DataError(f"{config.out} exists; choose another folder or pass --overwrite")
    if (config.max_prompt_tokens is None) != (config.model is None):
        raise DataError("a limit on prompt tokens needs both --model and --max-prompt-tokens")
    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    spool = partial / ".spool"
    try:
        spool.mkdir(parents=True)
        report = _fill(partial, spool, config)
        if config.is_strict and report.rows_dropped:
            raise DataError(
                f"{report.rows_dropped} of {report.rows_in} rows of {config.source} would be "
                f"dropped, which --strict forbids:\n{report.first_messages()}"
            )
        shutil.rmtree(spool)
        text = json.dumps(report.as_dict(), indent=1, ensure_ascii=False)
        (partial / REPORT_FILE).write_text(text + "\n", encoding="utf-8")
        _put_in_place(partial, out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return report


def _fill(partial: Path, spool: Path, config: PrepareConfig) -> PrepareReport:
    index: ContaminationIndex | None = None
    sets: list[EvalSet] = []
    if config.against:
        index, sets = load_eval_sets(config.against, spool)
    source = open_source(config.source, spool)
    names = resolve_columns(config.mapping, config.columns, source.columns)
    passed = passed_columns(source.columns, names)
    schema = table_schema(passed)
    if len(set(schema.names)) < len(schema.names):
        raise DataError(
            f"two columns of {config.source} would get one name among {', '.join(schema.names)}; "
            "rename one of them"
        )
    root = config.image_root
    plan = RowPlan(
        source=source,
        columns=names,
        passed=passed,
        image_root=None if root is None else str(root.expanduser().absolute()),
        folder=str(partial),
        remove_contaminated=config.removes_contaminated,
        render=_render_plan(config),
    )
    report = PrepareReport(
        source=config.source,
        mapping=names.used(source.columns),
        passed=list(passed),
        against=sets,
        on_contamination="remove" if config.removes_contaminated else "report",
    )
    workers = workers_for(source.parts, config.workers)
    results = _results(plan, index, workers=workers, timeout_s=config.timeout_s)
    rows: list[dict[str, object]] = []
    with pq.ParquetWriter(partial / TABLE_FILE, schema, compression="zstd") as writer:
        for result in results:
            report.add(result)
            rows += result.kept
            while len(rows) >= _ROWS_PER_GROUP:
                _write(writer, rows[:_ROWS_PER_GROUP])
                del rows[:_ROWS_PER_GROUP]
        if rows:
            _write(writer, rows)
    if report.rows_kept == 0:
        raise DataError(
            f"none of the {report.rows_in} rows of {config.source} can be used:\n"
            f"{report.first_messages()}"
        )
    report.images_stored = sum(1 for _ in (partial / IMAGE_FOLDER).glob("*/*"))
    return report


def workers_for(parts: Sequence[Part], chosen: int | None) -> int:
    """How many tasks to run at a time; 1 means without Ray.

    Args:
        parts: what there is to do.
        chosen: a user's own number, None to choose.
    """
    if chosen is not None:
        return max(1, min(chosen, len(parts)))
    return 1 if len(parts) < _MIN_PARTS_FOR_RAY else min(os.cpu_count() or 1, len(parts))


def _results(
    plan: RowPlan, index: ContaminationIndex | None, *, workers: int, timeout_s: float
) -> Iterator[PartResult]:
    """What became of each part of the plan's source, in order; 1 worker is this process."""
    if workers == 1:
        preparer = RowPreparer(plan, index)
        for part in plan.source.parts:
            yield preparer.prepare(part)
        return
    from mupo_ray.data.pipeline import InOrder
    from mupo_ray.placement.connect import join_or_start

    join_or_start({"num_cpus": workers, "include_dashboard": False}, log_to_driver=False)
    rows = InOrder(
        range(len(plan.source.parts)),
        partial(_prepared, plan, index),
        pa.schema([("result", pa.large_binary())]),
        name=lambda number: f"part {number} of {plan.source.spec}",
        concurrency=workers,
        ahead=_PARTS_AHEAD,
        timeout_s=timeout_s,
    )
    with closing(rows):
        for row in rows:
            result: PartResult = pickle.loads(row["result"])
            yield result


def _prepared(plan: RowPlan, index: ContaminationIndex | None) -> Task:
    """A task that prepares the part of a number; one preparer a process remembers pictures."""
    preparer = RowPreparer(plan, index)

    def task(number: int) -> Iterator[dict[str, Any]]:
        yield {"result": pickle.dumps(preparer.prepare(plan.source.parts[number]))}

    return task


def _render_plan(config: PrepareConfig) -> RenderPlan | None:
    if config.model is None or config.max_prompt_tokens is None:
        return None
    return PromptRenderer.from_pretrained(
        config.model, template=config.template, max_prompt_tokens=config.max_prompt_tokens
    ).plan


def _write(writer: pq.ParquetWriter, rows: Sequence[dict[str, object]]) -> None:
    writer.write_table(pa.Table.from_pylist(list(rows), schema=writer.schema))


def _put_in_place(partial: Path, out: Path) -> None:
    """Rename the finished folder; an earlier one goes away only then."""
    if not out.exists():
        partial.rename(out)
        return
    earlier = out.with_name(f".{out.name}.{os.getpid()}.earlier")
    out.rename(earlier)
    partial.rename(out)
    if earlier.is_dir():
        shutil.rmtree(earlier)
    else:
        earlier.unlink()
