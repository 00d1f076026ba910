"""Strategies of the laptop task, recognised from what the responses say.

A response that no known wording explains is `unrecognised`, a bucket of its own: a model whose
texts fall apart must not look like one that lost its strategies, nor the other way round.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mupo_ray.demo.puzzle_text import read_response
from mupo_ray.demo.puzzles import PROMPT, Strategy
from mupo_ray.evaluation.values import Floats, MeasureRow, entropy

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mupo_ray.demo.puzzle_text import Chain
    from mupo_ray.evaluation.samples import EvaluatedProblem

UNRECOGNISED = "unrecognised"

FIRST_SAMPLES = 8
"""Samples among which distinct strategies are counted."""

_QUESTION = PROMPT.replace("<image>", "").strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyValues:
    """What each of P problems shows; NaN where it has no value."""

    shares: dict[str, Floats]
    """Strategy, or `unrecognised` -> [P] share of the samples."""
    entropy: Floats
    """[P] nat, over the recognised samples."""
    num_in_first_8: Floats
    """[P] distinct recognised strategies."""
    fidelity: Floats
    """[P] share of recognised chains whose box follows from their own readings."""
    num_recognised: Floats
    """[P] samples that the fidelity is over."""


def puzzle_measures(problems: Sequence[EvaluatedProblem]) -> dict[str, MeasureRow]:
    """What puzzles show beside the measures of every set, for `measure_evaluation`.

    Args:
        problems: of any kind.

    Returns:
        `strategies/...` -> its values; nothing where a problem is no puzzle or has no samples.
    """
    if not all(_QUESTION in problem.question and problem.samples for problem in problems):
        return {}
    read = strategy_values(problems)
    most = float(len(Strategy))
    nothing = "no response is recognised"
    return {
        **{f"strategies/share/{name}": MeasureRow(values=row) for name, row in read.shares.items()},
        "strategies/entropy": MeasureRow(
            values=read.entropy, bounds=(0.0, math.log(most)), why_none=nothing
        ),
        "strategies/num_in_first_8": MeasureRow(
            values=read.num_in_first_8,
            bounds=(0.0, most),
            why_none=f"no problem has {FIRST_SAMPLES} samples",
        ),
        "strategies/fidelity": MeasureRow(
            values=read.fidelity, weights=read.num_recognised, why_none=nothing
        ),
    }


def strategy_values(problems: Sequence[EvaluatedProblem]) -> StrategyValues:
    """Read the samples of puzzles.

    Args:
        problems: each with at least one sample.
    """
    rows = [[read_response(response.text) for response in p.samples] for p in problems]
    counts = [Counter(map(_name, chains)) for chains in rows]
    names = [*map(str, Strategy), UNRECOGNISED]
    recognised = [[chain for chain in chains if chain is not None] for chains in rows]
    return StrategyValues(
        shares={
            name: _vector(c[name] / len(chains) for c, chains in zip(counts, rows, strict=True))
            for name in names
        },
        entropy=_vector(
            entropy(list(Counter(map(_name, known)).values())) if known else np.nan
            for known in recognised
        ),
        num_in_first_8=_vector(
            len({_name(chain) for chain in chains[:FIRST_SAMPLES]} - {UNRECOGNISED})
            if len(chains) >= FIRST_SAMPLES
            else np.nan
            for chains in rows
        ),
        fidelity=_vector(
            sum(chain.is_faithful for chain in known) / len(known) if known else np.nan
            for known in recognised
        ),
        num_recognised=_vector(map(len, recognised)),
    )


def _name(chain: Chain | None) -> str:
    return UNRECOGNISED if chain is None else str(chain.strategy)


def _vector(values: Iterable[float]) -> Floats:
    return np.fromiter(values, np.float64)
