"""One self-contained page that compares runs: figures, plots, samples, settings.

    read_run -> summarise -> table of final figures    runs/summary.py
             -> plots against the steps                run_plots.py
             -> cohorts with their pictures            pictures.py
                                         -> page       page.py

Everything a run says comes from its folder, so a report can be made again at any time.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from mupo_ray.config import Config
from mupo_ray.data.stream import PromptOrder
from mupo_ray.evaluation.measures import measure_set
from mupo_ray.evaluation.samples import load_problems
from mupo_ray.report.eval_page import eval_intro, eval_sections, read_evaluation
from mupo_ray.report.page import (
    Cell,
    ListedResponse,
    breakable,
    cell,
    fill,
    legend,
    page,
    save_page,
)
from mupo_ray.report.pictures import open_pictures
from mupo_ray.report.run_plots import heldout_section, meaning, time_section, train_section
from mupo_ray.runs.summary import base_columns, figure_order, read_run, summarise
from mupo_ray.settings.load import leaves
from mupo_ray.text import number

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mupo_ray.report.pictures import Picture, Pictures
    from mupo_ray.runs.summary import RunFiles, RunSummary

# Cohorts of a saved step, from the start of its file.
_COHORTS_SHOWN = 2
_COHORT_COLUMNS = (
    *("prompt_id", "position", "question", "answer", "image_sha256", "response_index", "text"),
    *("finish_reason", "extracted", "accuracy", "reason", "group_id"),
    *("reward", "reward_parts", "advantage"),
)


def write_report(
    runs: Mapping[str, Path],
    path: Path,
    title: str,
    *,
    evaluations: Mapping[str, Path] | None = None,
) -> Path:
    """Write the report, whole or not at all.

    Args:
        runs: name -> folder of the run; colours go by this order.
        path: of the HTML file; folders are made.
        title: of the page.
        evaluations: name -> folder of an evaluation, to stand on the same page; their colours
            follow those of the runs.

    Returns:
        The path.

    Raises:
        CheckpointError: a folder is not that of a run.
        DataError: a folder is not that of an evaluation.
        ValueError: no runs.
    """
    if not runs:
        raise ValueError("runs is empty; at least one is needed")
    files = {name: read_run(Path(folder)) for name, folder in runs.items()}
    summaries = {name: summarise(run) for name, run in files.items()}
    sections = [
        ("figures", "Final figures", _final_figures(files, summaries)),
        ("heldout", "Held-out questions", heldout_section(files, summaries)),
        ("training", "Training", train_section(files)),
        ("time", "Time", time_section(files, summaries)),
        ("samples", "Sampled responses", _samples(files)),
        ("settings", "Settings", _settings(files)),
    ]
    kept = [section for section in sections if section[2]]
    evaluated = {n: read_evaluation(Path(f)) for n, f in (evaluations or {}).items()}
    intro, names = _intro(files, summaries), [*files, *evaluated]
    if evaluated:
        intro += eval_intro(evaluated)
        kept += eval_sections(evaluated, first_series=len(files))
    text = page(title, intro, legend(names), kept, has_maps=bool(evaluated))
    return save_page(Path(path), text)


def _intro(files: Mapping[str, RunFiles], summaries: Mapping[str, RunSummary]) -> str:
    questions = {
        int(figures["questions"])
        for run in files.values()
        for _, figures in run.eval_rows()
        if "questions" in figures
    }
    sets = {run.eval_set for run in files.values() if run.eval_set is not None}
    return fill(
        "run/intro.html",
        steps={name: summary.steps for name, summary in summaries.items()},
        questions=sorted(questions),
        sets=sorted(sets),
    )


def _final_figures(files: Mapping[str, RunFiles], summaries: Mapping[str, RunSummary]) -> str:
    columns = []
    for name, base in base_columns(summaries).items():
        owner = next(n for n, s in summaries.items() if s.base == base)
        columns.append((name, base, files[owner]))
    columns += [(name, s.final, files[name]) for name, s in summaries.items()]
    intervals = [_intervals(run, figures.step) for _, figures, run in columns]
    names = {name for _, figures, _ in columns for name in figures.by_name()}
    rows: list[list[Cell | str]] = []
    for name in sorted(names, key=figure_order):
        values = [figures.by_name().get(name) for _, figures, _ in columns]
        if any(value is not None for value in values):
            label = Cell(text=breakable(name), small=meaning(name))
            cells = [cell(v, i.get(name)) for v, i in zip(values, intervals, strict=True)]
            rows.append([label, *cells])
    if rows:
        rows.append(["after steps", *(number(f.step, ".0f") for _, f, _ in columns)])
    head = ["", *(name for name, _, _ in columns)]
    return fill("run/figures.html", head=head, rows=rows, has_intervals=any(intervals))


def _intervals(run: RunFiles, step: int | None) -> dict[str, tuple[float, float]]:
    """95 % interval of each figure over the questions of an evaluation; empty without its file."""
    if step is None:
        return {}
    path = run.folder / "eval" / str(run.eval_set) / f"step_{step:06d}.parquet"
    problems = load_problems(path) if path.is_file() else []
    if not problems:
        return {}
    micro = measure_set(problems, limit=0).micro
    estimates = micro.measures | {f"pass@{k}": e for k, e in micro.pass_at_k.items()}
    if 4 in micro.any_of_k:
        estimates["acc@4"] = micro.any_of_k[4]
    return {
        name: (e.low, e.high)
        for name, e in estimates.items()
        if e.low is not None and e.high is not None
    }


def _samples(files: Mapping[str, RunFiles]) -> str:
    """The first cohorts of the first and the last step saved; empty without any."""
    steps = []
    for name, run in files.items():
        saved = sorted((run.folder / "rollouts").glob("step_*.parquet"))
        if not saved:
            continue
        config = run.record.get("config", {})
        pictures = open_pictures(str(config.get("data", {}).get("train") or ""))
        seed = int(config.get("run", {}).get("seed", 0))
        for file in saved if len(saved) <= 2 else [saved[0], saved[-1]]:
            steps.append(
                {
                    "run": name,
                    # Finished steps of the policy that sampled.
                    "step": int(file.stem.removeprefix("step_")),
                    "cohorts": [_cohort(rows, pictures, seed) for rows in _first_cohorts(file)],
                    "is_last": file == saved[-1],
                }
            )
    return fill("run/samples.html", steps=steps) if steps else ""


def _first_cohorts(file: Path) -> list[list[dict[str, Any]]]:
    """Rows, as `records.cohort_rows` makes them, of the first cohorts of a saved step."""
    cohorts: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in pq.read_table(file, columns=list(_COHORT_COLUMNS)).to_pylist():
        cohorts.setdefault((row["prompt_id"], row["position"]), []).append(row)
    return list(cohorts.values())[:_COHORTS_SHOWN]


def _cohort(rows: Sequence[dict[str, Any]], pictures: Pictures, seed: int) -> dict[str, Any]:
    """What a template says of a cohort."""
    groups: dict[int, list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda r: (r["group_id"], r["response_index"])):
        groups.setdefault(row["group_id"], []).append(row)
    first = rows[0]
    return {
        "pictures": _pictures_of(first, pictures, seed),
        "question": first["question"],
        "answer": first["answer"],
        "num_right": sum(map(_is_right, rows)),
        "num_responses": len(rows),
        "groups": [
            {
                "number": group + 1,
                "responses": [*map(_response, members)],
                "num_right": sum(map(_is_right, members)),
                "mean_reward": sum(row["reward"] for row in members) / len(members),
            }
            for group, members in groups.items()
        ],
    }


def _pictures_of(row: dict[str, Any], pictures: Pictures, seed: int) -> list[Picture]:
    """Pictures of the prompt at a row's place in the run's sequence."""
    number_of_row = row["position"]
    if pictures.table is not None:
        order = PromptOrder(num_rows=pictures.table.num_rows, seed=seed)
        number_of_row = order.rows([number_of_row])[0]
    return pictures.of(number_of_row, row["image_sha256"] or [])


def _is_right(row: dict[str, Any]) -> bool:
    return bool(row["accuracy"] >= 1.0)  # As `Verdict.is_correct`: a model may have judged it.


def _response(row: dict[str, Any]) -> ListedResponse:
    parts = " + ".join(f"{n} {v:.2f}" for n, v in row["reward_parts"].items() if v is not None)
    notes = [f"reward {row['reward']:.2f} = {parts}", f"advantage {row['advantage']:+.2f}"]
    if row["finish_reason"] == "length":
        notes.append("cut at the token limit")
    return ListedResponse(
        text=row["text"],
        reason=row["reason"],
        is_right=_is_right(row),
        extracted=row["extracted"],
        notes=notes,
    )


def _settings(files: Mapping[str, RunFiles]) -> str:
    columns = {name: _texts(run.record.get("config", {})) for name, run in files.items()}
    hint = "Settings in which the runs differ."
    if len(columns) == 1:
        columns = {"default": _texts(json.loads(Config().model_dump_json())), **columns}
        hint = "Settings that are not the default."
    made = {name: _texts(_provenance(run.record)) for name, run in files.items()}
    differing = (row for row in _rows(columns) if row[0] != "run.name" and len({*row[1:]}) > 1)
    return fill(
        "run/settings.html",
        hint=hint,
        head=["", *columns],
        rows=[*differing],
        runs=["", *made],
        versions=[*_rows(made)],
    )


def _rows(columns: Mapping[str, Mapping[str, str]]) -> Iterator[list[str]]:
    """A row for each key of any column."""
    for key in dict.fromkeys(key for column in columns.values() for key in column):
        yield [key, *(column.get(key, "-") for column in columns.values())]


def _provenance(record: Mapping[str, Any]) -> dict[str, Any]:
    """What made a run, but for its config."""
    return {
        "seed": record.get("seeds", {}),
        "commit": record.get("commit"),
        "python": record.get("python"),
        **record.get("packages", {}),
    }


def _texts(tree: Mapping[str, Any]) -> dict[str, str]:
    """Dotted key -> value as text."""
    return {k: v if isinstance(v, str) else json.dumps(v) for k, v in leaves(tree).items()}
