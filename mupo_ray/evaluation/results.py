"""The file `results.json`: what an evaluation measured, in a schema that tools may rely on.

    EvalResults
    +-- sets: name -> SetResults
    |                 +-- micro        Estimates over all problems, each counting the same
    |                 +-- macro        Estimates, the mean over categories, each counting the same
    |                 +-- by_category  category -> Estimates over its problems
    +-- micro, macro   Estimates over all sets: each problem, each set counts the same

The folder of an evaluation has one such file a set (with that set alone) and one over all sets.
Within a `schema_version` keys are added, never renamed, removed or given another meaning.
Version 1 held the laptop task's strategies in a key of their own, null in all other sets; it is
read without them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

from mupo_ray.errors import DataError
from mupo_ray.files import write_text

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA_VERSION = 2
_READABLE = (1, SCHEMA_VERSION)

RESULTS_FILE = "results.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingSettings:
    """How the samples were drawn; the greedy answer has temperature 0 and the same limit."""

    num_samples: int
    """Samples asked for of each problem (n)."""
    temperature: float
    top_p: float
    max_new_tokens: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalSettings:
    """How the intervals were made."""

    level: float
    """Share of intervals that hold the true value, were the evaluation repeated on problems drawn
    anew."""
    method: str = "score interval, bootstrap variance over problems"


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over problems with its interval."""

    value: float
    low: float | None
    """Lower end; None where the problems are too few for one."""
    high: float | None
    num_problems: int
    """Problems that the value is over; fewer than all where some have no value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A measure that cannot be estimated."""

    measure: str
    """As tables call it: `pass@5`, `diversity`."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """All measures over some problems. docs/evaluation.md has their formulas."""

    num_problems: int
    num_samples: int
    """Samples over all problems, greedy answers apart."""
    measures: dict[str, Estimate]
    """`acc@1`, `acc@1_sampled`, `diversity`, `effective_strategies`, `answer_entropy`, `length`,
    `truncated_frac`, `format`; those that could be estimated, in this order. Behind them what
    problems of one kind alone show, under names with a slash."""
    pass_at_k: dict[int, Estimate]
    """k -> unbiased chance of a right one among k samples; every k from 1 to the fewest samples
    that a problem has. The other measures of k have the same k."""
    any_of_k: dict[int, Estimate]
    """k -> share of disjoint blocks of k samples with a right one."""
    majority_at_k: dict[int, Estimate]
    """k -> chance that the most frequent answer of k samples is right."""
    best_of_k: dict[int, Estimate]
    """k -> chance that the best-scored of k samples is right; empty where nothing was scored."""
    reasons: dict[str, int]
    """Reason of a verdict -> samples that have it, the most frequent first."""
    left_out: tuple[LeftOut, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SetResults:
    """One evaluation set."""

    micro: Estimates
    macro: Estimates | None
    """None where the problems have no categories, or some have none."""
    by_category: dict[str, Estimates]
    """In alphabetical order; empty where the problems have no categories."""
    data: str | None = None
    """File, folder or glob that the problems came from, as `data.table.open_table` takes it, their
    `position` being its row; a report finds their pictures there. None where it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalResults:
    """What `results.json` holds."""

    schema_version: int = SCHEMA_VERSION
    model: str
    """Checkpoint folder, or name of the served model."""
    created: str
    """When the file was made, ISO 8601 with its offset to UTC."""
    sampling: SamplingSettings
    intervals: IntervalSettings
    sets: dict[str, SetResults]
    micro: Estimates | None = None
    """Over the problems of all sets; None with one set."""
    macro: Estimates | None = None
    """Mean over sets; None with one set."""


_ADAPTER = TypeAdapter(EvalResults)


def results_to_json(results: EvalResults) -> str:
    """The text of `results.json`; the same results give the same text."""
    return _ADAPTER.dump_json(results, indent=2).decode() + "\n"


def results_from_json(text: str) -> EvalResults:
    """Read the text of `results.json`.

    Raises:
        DataError: it is of another schema version, or not of the schema.
    """
    try:
        results = _ADAPTER.validate_json(text)
    except ValidationError as err:
        first = err.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise DataError(
            f"not the results of an evaluation: {place}: {first['msg']}; expected the schema of "
            f"version {SCHEMA_VERSION} in docs/evaluation.md"
        ) from err
    if results.schema_version not in _READABLE:
        raise DataError(
            f"results have schema_version {results.schema_version}, expected {SCHEMA_VERSION}; "
            "measure again from the samples"
        )
    return results


def save_results(path: Path, results: EvalResults) -> None:
    """Write `results.json`, whole or not at all."""
    write_text(path, results_to_json(results))


def load_results(path: Path) -> EvalResults:
    """Read what `save_results` wrote.

    Raises:
        DataError: there is no such file, or it is not of the schema.
    """
    try:
        return results_from_json(path.read_text(encoding="utf-8"))
    except (OSError, DataError) as err:
        raise DataError(f"{path}: {err}") from err
