"""The file `compare.json`: what differs between two evaluations of the same problems.

Within a `schema_version` keys are added, never renamed, removed or given another meaning.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from mupo_ray.evaluation.results import LeftOut

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class McNemar:
    """Greedy answers to the same problems, tested exactly."""

    num_problems: int
    acc_a: float
    acc_b: float
    num_both: int
    """Problems that both solve."""
    num_only_a: int
    num_only_b: int
    num_neither: int
    p_value: float
    """Two-sided: chance of a split of the problems that one run alone solves at least as uneven,
    were both runs as likely to be that one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A measure of both runs on the same problems."""

    num_problems: int
    a: float
    b: float
    difference: float
    """b - a."""
    low: float
    high: float
    p_value: float
    """Two-sided, of the bootstrap; not corrected for how many measures are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Correlation:
    """Spearman's rank correlation over problems."""

    num_problems: int
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OneSided:
    """A problem that one run solves and the other never does."""

    prompt_id: str
    question: str
    answer: str
    """Gold."""
    category: str | None
    num_right: int
    """Right samples of the run that solves it."""
    num_samples: int
    """Its samples."""
    num_samples_other: int
    """Samples of the other run, none of them right, nor its greedy answer."""
    right_text: str
    """The first right response."""
    wrong_text: str
    """The first response of the other run with its most frequent answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetComparison:
    """Two runs on one set, paired by `prompt_id`."""

    num_shared: int
    num_only_a: int
    """Problems that run b has not; they are in nothing below."""
    num_only_b: int
    greedy: McNemar | None
    """None where no problem has a greedy answer in both."""
    differences: dict[str, Difference]
    """Measure -> its difference: `pass@k` for every k up to the fewest samples, `majority@k` at the
    largest, `diversity`, `effective_strategies`, `answer_entropy`, `length`."""
    diversity_and_pass: dict[str, dict[int, Correlation]]
    """`a`, `b` -> k -> correlation of a problem's diversity and its pass@k in that run;
    `difference`: of what the two gained from a to b."""
    only_a: tuple[OneSided, ...]
    """What a solves and b never does, most often solved first."""
    only_b: tuple[OneSided, ...]
    left_out: tuple[LeftOut, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What `compare.json` holds."""

    schema_version: int = SCHEMA_VERSION
    run_a: str
    run_b: str
    level: float
    """Of the intervals."""
    num_resamples: int
    seed: int
    sets: dict[str, SetComparison]
    sets_only_a: tuple[str, ...] = ()
    sets_only_b: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """Ways in which the runs were sampled differently."""


_ADAPTER = TypeAdapter(Comparison)


def save_comparison(path: Path, comparison: Comparison) -> None:
    """Write `compare.json`, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_bytes(_ADAPTER.dump_json(comparison, indent=2) + b"\n")
    draft.replace(path)


def load_comparison(path: Path) -> Comparison:
    """Read what `save_comparison` wrote."""
    return _ADAPTER.validate_json(path.read_bytes())
