r"""`predictions.tsv`: a model's answers as VLMEvalKit's evaluators read them.

One row a question: the columns of the table that the questions came from, in order and without the
pictures, and `prediction` last. Every cell is quoted, as VLMEvalKit writes its own, so that tabs,
line ends and quotes come back from `pandas.read_csv(path, sep="\t")` as they were.
"""

from __future__ import annotations

import csv
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mupo_ray.data.render import PLACEHOLDER
from mupo_ray.data.table import RowError
from mupo_ray.files import whole
from mupo_ray.prepare.columns import as_text
from mupo_ray.prepare.sources import open_source
from mupo_ray.rewards.verdicts import OPTIONS_COLUMN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from mupo_ray.evaluation.samples import EvaluatedProblem
    from mupo_ray.evaluation.sets import EvalSource

PREDICTIONS_FILE = "predictions.tsv"
PREDICTION = "prediction"

_CLOSE_THINK = "</think>"


def write_predictions(
    path: Path, source: EvalSource, problems: Sequence[EvaluatedProblem], limit: int | None = None
) -> None:
    """Write the answers to a set, whole or not at all.

    A row of a VLMEvalKit table that could not be asked has an empty prediction.

    Args:
        path: of the file.
        source: the set.
        problems: what was answered.
        limit: rows of the set that were asked, from its start.

    Raises:
        DataError: the table that the set came from cannot be read any more.
    """
    if source.tsv is None:
        columns, rows = _own_table(problems)
    else:
        columns, rows = _carried_table(source, problems, limit)
    with whole(path) as draft, draft.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, delimiter="\t", quoting=csv.QUOTE_ALL, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([row.get(name) or "" for name in columns] for row in rows)


def prediction_of(problem: EvaluatedProblem) -> str:
    """The answer to score: what is in the box, or else the text behind the reasoning.

    It is taken from the greedy response, or from the first sample where there is none.
    """
    responses = (*([problem.greedy] if problem.greedy else []), *problem.samples)
    if not responses:
        return ""
    response = responses[0]
    if response.extracted is not None:
        return response.extracted
    return response.text.rpartition(_CLOSE_THINK)[2].strip()


def _carried_table(
    source: EvalSource, problems: Sequence[EvaluatedProblem], limit: int | None
) -> tuple[list[str], Iterator[Mapping[str, str | None]]]:
    """Columns and rows of the table that the set was prepared from."""
    assert source.tsv is not None
    by_place = {problem.position: problem for problem in problems}
    with tempfile.TemporaryDirectory() as spool:
        table = open_source(source.tsv, Path(spool))
    columns = [name for name in table.columns if name not in ("image", PREDICTION)]
    num_asked = source.table.num_rows if limit is None else min(limit, source.table.num_rows)

    def rows() -> Iterator[Mapping[str, str | None]]:
        place = 0
        for raw in (raw for part in table.parts for raw in table.read(part)):
            if place == num_asked and limit is not None:
                return
            problem = None
            if raw.index not in source.dropped_rows:
                problem = by_place.get(place)
                place += 1
            # A row that has no cells was never one that VLMEvalKit could read.
            if raw.cells:
                prediction = "" if problem is None else prediction_of(problem)
                yield {**_texts(raw.cells), PREDICTION: prediction}

    return [*columns, PREDICTION], rows()


def _own_table(
    problems: Sequence[EvaluatedProblem],
) -> tuple[list[str], Iterable[Mapping[str, str | None]]]:
    """Columns and rows in VLMEvalKit's layout, for a set that had another."""
    options = [_options(problem) for problem in problems]
    letters = sorted({letter for of_problem in options for letter in of_problem})
    taken = ("index", "question", *letters, "answer", "category", PREDICTION)
    hidden = (*taken, OPTIONS_COLUMN, "prompt_id")
    others = dict.fromkeys(k for problem in problems for k in problem.meta if k not in hidden)
    indices = [problem.meta.get("index") for problem in problems]
    is_named = None not in indices and len(set(indices)) == len(indices)
    rows = [
        {
            **problem.meta,
            "index": index if is_named else str(problem.position),
            "question": problem.question.replace(PLACEHOLDER, "").strip(),
            **of_problem,
            "answer": problem.answer,
            "category": problem.category,
            PREDICTION: prediction_of(problem),
        }
        for problem, of_problem, index in zip(problems, options, indices, strict=True)
    ]
    return [*taken[:-1], *others, PREDICTION], rows


def _options(problem: EvaluatedProblem) -> dict[str, str]:
    text = problem.meta.get(OPTIONS_COLUMN)
    by_letter: dict[str, str] = json.loads(text) if text else {}
    return by_letter


def _texts(cells: Mapping[str, Any]) -> dict[str, str | None]:
    texts: dict[str, str | None] = {}
    for name, cell in cells.items():
        try:
            texts[name] = as_text(cell)
        except RowError:
            texts[name] = None
    return texts
