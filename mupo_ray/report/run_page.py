"""One self-contained page that compares runs: figures, plots, samples, settings.

    read_run -> summarise -> table of final figures        summary.py
             -> sections with plots, as inline SVG         report_sections.py, report_collapse.py
             -> cohorts with their pictures                report_cohorts.py
                                         -> page           report_page.py

Everything a run says comes from its folder, so a report can be made again at any time.
"""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mupo_ray.config import Config
from mupo_ray.evaluation.measures import measure_set
from mupo_ray.evaluation.samples import load_problems
from mupo_ray.report.cohorts import cohort_html, cohort_steps, run_pictures
from mupo_ray.report.eval_page import eval_intro, eval_sections, read_evaluation
from mupo_ray.report.page import legend, page, save_page, table
from mupo_ray.report.sections import (
    cell,
    eval_section,
    meaning,
    time_section,
    train_section,
)
from mupo_ray.runs.summary import (
    Figures,
    RunFiles,
    RunSummary,
    base_columns,
    comparison_table,
    figure_order,
    read_run,
    summarise,
    summarise_run,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "Figures",
    "RunSummary",
    "comparison_table",
    "summarise_run",
    "write_report",
]


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
        ("figures", "Final figures", _final_table(files, summaries)),
        ("heldout", "Held-out questions", eval_section(files, summaries)),
        ("training", "Training", train_section(files)),
        ("time", "Time", time_section(files, summaries)),
        ("samples", "Sampled responses", _cohort_section(files)),
        ("settings", "Settings", _settings_section(files)),
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
    steps = ", ".join(f"{html.escape(name)} {s.steps} steps" for name, s in summaries.items())
    questions = {
        int(figures["questions"])
        for run in files.values()
        for _, figures in run.eval_rows()
        if "questions" in figures
    }
    sets = {run.eval_set for run in files.values() if run.eval_set is not None}
    asked = (
        f" Evaluated on {' and '.join(map(str, sorted(questions)))} questions of "
        f"{html.escape(' and '.join(sorted(sets)))}."
        if questions
        else ""
    )
    return f'<p class="intro">Trained: {steps}.{asked}</p>'


def _final_table(files: Mapping[str, RunFiles], summaries: Mapping[str, RunSummary]) -> str:
    bases = base_columns(summaries)
    columns: list[tuple[str, Figures, RunFiles]] = []
    for name, figures in bases.items():
        owner = next(n for n, s in summaries.items() if s.base == figures)
        columns.append((name, figures, files[owner]))
    columns += [(name, s.final, files[name]) for name, s in summaries.items()]
    spread = [_intervals(run, figures.step) for _, figures, run in columns]
    names = {name for _, figures, _ in columns for name in figures.by_name()}
    rows = []
    for name in sorted(names, key=figure_order):
        values = [figures.by_name().get(name) for _, figures, _ in columns]
        if all(value is None for value in values):
            continue
        cells = [cell(v, s.get(name)) for v, s in zip(values, spread, strict=True)]
        rows.append(
            [f"{html.escape(name).replace('_', '_<wbr>')}<small>{meaning(name)}</small>", *cells]
        )
    if not rows:
        return '<p class="hint">No evaluation was made in these runs.</p>'
    rows.append(["after steps", *(cell(f.step, None, 0) for _, f, _ in columns)])
    note = (
        '<p class="hint">Small figures: 95 % interval over questions. The runs answer '
        "the same questions, so intervals that overlap may still hide a difference.</p>"
        if any(spread)
        else ""
    )
    head = ["", *(name for name, _, _ in columns)]
    return table(head, rows, caption="Final figures of each run") + note


def _intervals(run: RunFiles, step: int | None) -> dict[str, tuple[float, float]]:
    """95 % interval of each figure over the questions of an evaluation; empty without its file."""
    if step is None:
        return {}
    path = run.folder / "eval" / str(run.eval_set) / f"step_{step:06d}.parquet"
    if not path.is_file():
        return {}
    problems = load_problems(path)
    if not problems:
        return {}
    measured = measure_set(problems, limit=0).micro
    found = measured.measures | {f"pass@{k}": e for k, e in measured.pass_at_k.items()}
    if 4 in measured.any_of_k:
        found["acc@4"] = measured.any_of_k[4]
    return {
        name: (e.low, e.high)
        for name, e in found.items()
        if e.low is not None and e.high is not None
    }


def _cohort_section(files: Mapping[str, RunFiles]) -> str:
    parts = []
    for name, run in files.items():
        steps = cohort_steps(run)
        pictures = run_pictures(run) if steps else None
        for number, (step, cohorts) in enumerate(steps):
            assert pictures is not None
            inner = "".join(cohort_html(rows, pictures) for rows in cohorts)
            is_open = " open" if number == len(steps) - 1 else ""
            parts.append(
                f"<details{is_open}><summary>{html.escape(name)}, sampled after {step} finished "
                f"steps</summary>{inner}</details>"
            )
    if not parts:
        return ""
    return (
        '<p class="hint">The first prompts of the first and of the last step saved, not chosen by '
        "outcome. The bar at the left is green for a right answer, red for any other.</p>"
        + "".join(parts)
    )


def _settings_section(files: Mapping[str, RunFiles]) -> str:
    records = {name: _flat(run.record.get("config", {})) for name, run in files.items()}
    if len(records) > 1:
        columns, hint = records, "Settings in which the runs differ."
    else:
        defaults = _flat(json.loads(Config().model_dump_json()))
        columns, hint = {"default": defaults, **records}, "Settings that are not the default."
    keys = dict.fromkeys(key for record in columns.values() for key in record)
    differing = [
        key for key in keys if key != "run.name" and len({r.get(key) for r in columns.values()}) > 1
    ]
    rows = [
        [html.escape(key), *(html.escape(r.get(key, "-")) for r in columns.values())]
        for key in differing
    ]
    shown = table(["", *columns], rows, caption=hint, words=True) if rows else "<p>None.</p>"
    made = {name: _flat(_provenance(run.record)) for name, run in files.items()}
    names = dict.fromkeys(key for record in made.values() for key in record)
    versions = [
        [html.escape(key), *(html.escape(r.get(key, "-")) for r in made.values())] for key in names
    ]
    inner = table(["", *made], versions, caption="Versions and seeds", words=True)
    return (
        f'<p class="hint">{hint}</p>{shown}'
        f"<details><summary>Versions and seeds</summary>{inner}</details>"
    )


def _provenance(record: Mapping[str, Any]) -> dict[str, Any]:
    """What made a run, but for its config."""
    return {
        "seed": record.get("seeds", {}),
        "commit": record.get("commit"),
        "python": record.get("python"),
        **record.get("packages", {}),
    }


def _flat(tree: Any, path: str = "") -> dict[str, str]:
    """Dotted key -> value as text."""
    if isinstance(tree, dict):
        found: dict[str, str] = {}
        for key, value in tree.items():
            found |= _flat(value, f"{path}.{key}" if path else str(key))
        return found
    return {path: tree if isinstance(tree, str) else json.dumps(tree)}
