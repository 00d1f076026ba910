"""One self-contained page about evaluations: measures, curves of k, maps of reasoning, responses.

    read_evaluation -> results.json -> curves, tables    report_curves.py, report_measures.py
                    -> samples.parquet -> problems with maps    report_problems.py, report_map.py
                                                     -> page    report_page.py

Everything comes from the folders, so that a report can be made again at any time.
"""

from __future__ import annotations

import html
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mupo_ray.evaluation.results import RESULTS_FILE, load_results
from mupo_ray.evaluation.samples import SAMPLES_FILE, load_problems
from mupo_ray.report.cards import Grouping, ProblemCards
from mupo_ray.report.choice import Shown, choose
from mupo_ray.report.compare import compare_section, compare_to_first
from mupo_ray.report.curves import curves_section
from mupo_ray.report.estimates import set_names
from mupo_ray.report.measures import categories_section, measures_section
from mupo_ray.report.page import legend, page, save_page, table
from mupo_ray.report.pictures import open_pictures

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mupo_ray.evaluation.results import EvalResults
    from mupo_ray.evaluation.samples import EvaluatedProblem
    from mupo_ray.report.pictures import Pictures


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """How much of the samples a page holds; it says so."""

    problems_by_rule: int = 4
    """Problems of a set by each rule of `report_problems.choose`."""
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
    results = {name: found.results for name, found in files.items()}
    curves = curves_section(results, first_series=first_series)
    categories = categories_section(results, first_series=first_series)
    by_model = {name: found.problems for name, found in files.items()}
    shown, counts = _shown(by_model, shares)
    pairs = compare_to_first(by_model, shares.solved_alone)
    compared = [item for pair in pairs for items in pair.shown.values() for item in items]
    cards = ProblemCards([*shown, *compared], _pictures(results), grouping, shares.listed)
    sections = [
        ("curves", "Right answers against samples", curves),
        ("measures", "Measures", measures_section(results)),
        ("categories", "By category", categories),
        ("comparison", "Compared", compare_section(pairs, cards)),
        (
            "problems",
            "Reasoning, problem by problem",
            _problems(shown, counts, cards, grouping, shares),
        ),
        ("evaluations", "How it was evaluated", _settings(results)),
    ]
    return [section for section in sections if section[2]]


def eval_intro(files: Mapping[str, EvalFiles]) -> str:
    """What was evaluated, in a sentence."""
    sizes: dict[str, int] = {}
    for found in files.values():
        sizes |= {name: s.micro.num_problems for name, s in found.results.sets.items()}
    asked = ", ".join(f"{html.escape(name)} ({size:,} questions)" for name, size in sizes.items())
    counts = sorted({found.results.sampling.num_samples for found in files.values()})
    heat = sorted({found.results.sampling.temperature for found in files.values()})
    return (
        f'<p class="intro">Evaluated: {html.escape(", ".join(files))} on {asked}. '
        f"{' or '.join(map(str, counts))} samples of each question at temperature "
        f"{' or '.join(f'{t:g}' for t in heat)}.</p>"
    )


def _shown(
    by_model: Mapping[str, Mapping[str, Sequence[EvaluatedProblem]]], shares: Shares
) -> tuple[list[Shown], list[str]]:
    """Problems of every set by the rules of `choose`, and how many of how many they are."""
    shown, counts = [], []
    names = dict.fromkeys(name for problems in by_model.values() for name in problems)
    for number, name in enumerate(names):
        asked = {model: sets[name] for model, sets in by_model.items() if name in sets}
        chosen = choose(asked, shares.problems_by_rule)
        shown += [
            Shown(key=f"p{number}-{i}", why=why, answers=answers)
            for i, (why, answers) in enumerate(chosen)
        ]
        total = len({p.prompt_id for problems in asked.values() for p in problems})
        counts.append(f"{len(chosen)} of the {total:,} questions of {html.escape(name)}")
    return shown, counts


def _pictures(results: Mapping[str, EvalResults]) -> dict[str, Pictures]:
    """Set -> its pictures, from the first data file that a model's results name."""
    found = {}
    for name in set_names(results):
        asked = [r.sets[name].data for r in results.values() if name in r.sets]
        found[name] = open_pictures(next((data for data in asked if data is not None), None))
    return found


def _problems(
    shown: Sequence[Shown],
    counts: Sequence[str],
    cards: ProblemCards,
    grouping: Grouping,
    shares: Shares,
) -> str:
    if not shown:
        return ""
    hint = (
        f'<p class="hint">Shown: {" and ".join(counts)}. Of each set, in this order: the '
        f"{shares.problems_by_rule} whose samples' reasoning is most divergent (mean over models), "
        f"the {shares.problems_by_rule} with the fewest right samples, the "
        f"{shares.problems_by_rule} first ones. Of each model at most {shares.listed} different "
        "responses are listed; the maps have all samples.</p>"
        '<p class="hint">A map shows the reasoning of all models\' samples to one question in the '
        "plane of most variance: near marks reason alike (cosine distance of embeddings). All maps "
        "of the page have one scale; marks that would cover each other are moved apart. Groups "
        f"are the partition that MUPO trains with, K = {grouping.num_groups} with at least "
        f"{grouping.min_group_size} responses each, for each model apart, so that a model with "
        "one way of reasoning is cut as well. Lines lead to the middle of a group.</p>"
        '<ul class="key"><li class="g0"><i class="pt right"></i>right</li>'
        '<li class="g0"><i class="pt wrong"></i>not right</li>'
        + "".join(
            f'<li class="g{i}"><i class="swatch"></i>group {i + 1}</li>'
            for i in range(grouping.num_groups)
        )
        + "</ul>"
    )
    return hint + "".join(map(cards.html, shown))


def _settings(results: Mapping[str, EvalResults]) -> str:
    records = {
        name: {
            "model": found.model,
            "created": found.created,
            **{f"sampling.{key}": value for key, value in asdict(found.sampling).items()},
            **{f"intervals.{key}": value for key, value in asdict(found.intervals).items()},
        }
        for name, found in results.items()
    }
    keys = dict.fromkeys(key for record in records.values() for key in record)
    rows = [
        [key, *(html.escape(str(record.get(key, "-"))) for record in records.values())]
        for key in keys
    ]
    return table(["", *results], rows, caption="Settings of the evaluations", words=True)
