"""One self-contained page about evaluations: measures, curves of k, maps of reasoning, responses.

    read_evaluation -> results.json -> curves, tables              eval_tables.py
                    -> samples.parquet -> problems with maps       cards.py, maps.py
                                       -> models compared          eval_tables.py
                                                       -> page     page.py

Everything comes from the folders, so that a report can be made again at any time.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mupo_ray.evaluation.results import RESULTS_FILE, load_results
from mupo_ray.evaluation.samples import SAMPLES_FILE, load_problems
from mupo_ray.report.cards import Chosen, Grouping, choose, make_cards
from mupo_ray.report.eval_tables import (
    categories_section,
    compare_section,
    compare_to_first,
    curves_section,
    measures_section,
    set_names,
)
from mupo_ray.report.page import fill, legend, page, save_page
from mupo_ray.report.pictures import open_pictures

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mupo_ray.evaluation.results import EvalResults
    from mupo_ray.evaluation.samples import EvaluatedProblem
    from mupo_ray.report.pictures import Pictures


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """How much of the samples a page holds; it says so."""

    problems_by_rule: int = 4
    """Problems of a set by each rule of `cards.choose`."""
    solved_alone: int = 3
    """Problems of a set that one of two compared models alone solves, for each of the two."""
    listed: int = 16
    """Different responses of a model to a problem; the map has all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalFiles:
    """What an evaluation's folder says, read once."""

    results: EvalResults
    problems: dict[str, list[EvaluatedProblem]]
    """Set -> its problems."""


_GROUPING, _SHARES = Grouping(), Shares()


def is_evaluation(folder: Path) -> bool:
    """True for the folder of an evaluation."""
    return (folder / RESULTS_FILE).is_file()


def read_evaluation(folder: Path) -> EvalFiles:
    """Read the results and the samples of an evaluation.

    Raises:
        DataError: the folder is not that of an evaluation.
    """
    results = load_results(folder / RESULTS_FILE)
    problems = {name: load_problems(folder / name / SAMPLES_FILE) for name in results.sets}
    return EvalFiles(results=results, problems=problems)


def write_eval_report(
    evaluations: Mapping[str, Path],
    path: Path,
    title: str,
    *,
    grouping: Grouping = _GROUPING,
    shares: Shares = _SHARES,
) -> Path:
    """Write the report, whole or not at all.

    Args:
        evaluations: name of each model -> folder of its evaluation; colours go by this order.
        path: of the HTML file; folders are made.
        title: of the page.
        grouping: how responses are put into groups.
        shares: how much is shown.

    Returns:
        The path.

    Raises:
        DataError: a folder is not that of an evaluation.
        ValueError: no evaluations.
    """
    if not evaluations:
        raise ValueError("evaluations is empty; at least one is needed")
    files = {name: read_evaluation(Path(folder)) for name, folder in evaluations.items()}
    sections = eval_sections(files, grouping=grouping, shares=shares)
    text = page(title, eval_intro(files), legend(list(files)), sections, has_maps=True)
    return save_page(Path(path), text)


def eval_sections(
    files: Mapping[str, EvalFiles],
    *,
    first_series: int = 0,
    grouping: Grouping = _GROUPING,
    shares: Shares = _SHARES,
) -> list[tuple[str, str, str]]:
    """Id, heading and HTML of what a page says of evaluations.

    Args:
        files: of each model.
        first_series: number of the first model among the page's lines.
        grouping: as in `write_eval_report`.
        shares: as in `write_eval_report`.
    """
    results = {name: evaluation.results for name, evaluation in files.items()}
    by_model = {name: evaluation.problems for name, evaluation in files.items()}
    chosen = _chosen(by_model, shares.problems_by_rule)
    pairs = compare_to_first(by_model, shares.solved_alone)
    of_sets = [item for items in chosen.values() for item in items]
    of_pairs = [item for pair in pairs for items in pair.one_sided.values() for item in items]
    cards = make_cards([*of_sets, *of_pairs], _pictures(results), grouping, shares.listed)
    problems = ""
    if of_sets:
        problems = fill(
            "eval/problems.html",
            sets=[
                (name, len(items), _num_problems(by_model, name)) for name, items in chosen.items()
            ],
            cards=[cards[item.key] for item in of_sets],
            grouping=grouping,
            shares=shares,
        )
    sections = [
        ("curves", "Right answers against samples", curves_section(results, first_series)),
        ("measures", "Measures", measures_section(results)),
        ("categories", "By category", categories_section(results, first_series)),
        ("comparison", "Compared", compare_section(pairs, cards)),
        ("problems", "Reasoning, problem by problem", problems),
        ("evaluations", "How it was evaluated", _settings(results)),
    ]
    return [section for section in sections if section[2]]


def eval_intro(files: Mapping[str, EvalFiles]) -> str:
    """What was evaluated, in a sentence."""
    results = [evaluation.results for evaluation in files.values()]
    temperatures = sorted({r.sampling.temperature for r in results})
    return fill(
        "eval/intro.html",
        models=list(files),
        sizes={name: s.micro.num_problems for r in results for name, s in r.sets.items()},
        counts=sorted({r.sampling.num_samples for r in results}),
        temperatures=[f"{temperature:g}" for temperature in temperatures],
    )


def _chosen(
    by_model: Mapping[str, Mapping[str, list[EvaluatedProblem]]], num_each: int
) -> dict[str, list[Chosen]]:
    """Set -> its problems by the rules of `choose`."""
    chosen = {}
    for number, name in enumerate(dict.fromkeys(n for sets in by_model.values() for n in sets)):
        problems = {model: sets[name] for model, sets in by_model.items() if name in sets}
        chosen[name] = [
            Chosen(key=f"p{number}-{i}", why=why, answers=answers)
            for i, (why, answers) in enumerate(choose(problems, num_each))
        ]
    return chosen


def _num_problems(
    by_model: Mapping[str, Mapping[str, list[EvaluatedProblem]]], set_name: str
) -> int:
    """Different problems of a set that any model was asked."""
    return len({p.prompt_id for sets in by_model.values() for p in sets.get(set_name, ())})


def _pictures(results: Mapping[str, EvalResults]) -> dict[str, Pictures]:
    """Set -> its pictures, from the first data file that a model's results name."""
    pictures = {}
    for name in set_names(results):
        files = [r.sets[name].data for r in results.values() if name in r.sets]
        pictures[name] = open_pictures(next((data for data in files if data is not None), None))
    return pictures


def _settings(results: Mapping[str, EvalResults]) -> str:
    records = [
        {
            "model": evaluation.model,
            "created": evaluation.created,
            **{f"sampling.{key}": value for key, value in asdict(evaluation.sampling).items()},
            **{f"intervals.{key}": value for key, value in asdict(evaluation.intervals).items()},
        }
        for evaluation in results.values()
    ]
    keys = dict.fromkeys(key for record in records for key in record)
    rows = [[key, *(str(record.get(key, "-")) for record in records)] for key in keys]
    return fill("eval/settings.html", head=["", *results], rows=rows)
