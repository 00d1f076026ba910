"""Metrics of a step over all ranks: each key with its reducer, where the value arises."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from mupo_ray.core.diversity import effective_strategies_of_embeddings, pairwise_diversity
from mupo_ray.types import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mupo_ray.train.stages import Embedded, SampledStep
    from mupo_ray.types import ScoredCohort


class Reduce(StrEnum):
    """How the values of all ranks become one number."""

    MEAN = "mean"
    STD = "std"
    MIN = "min"
    MAX = "max"
    SUM = "sum"

    def __call__(self, values: Sequence[float]) -> float:
        """One number of at least one value."""
        return float(getattr(np, self.value)(values))


@dataclass(slots=True)
class StepRecord:
    """What a step, or one rank's part of it, comes to."""

    values: dict[tuple[str, Reduce], list[float]] = field(default_factory=dict)
    """(metric key, reducer) -> values."""
    order: list[tuple[int, str]] = field(default_factory=list)
    """Position and id of every prompt that is trained on."""
    num_tokens: int = 0
    """Sampled tokens in the cohorts that are trained on."""

    def add(self, key: str, values: Iterable[float], how: Reduce = Reduce.MEAN) -> None:
        """Take values of a metric; what was not measured has none."""
        self.values.setdefault((key, how), []).extend(values)

    def metrics(self) -> dict[str, float]:
        """Metric key -> its value; a key without values is left out."""
        return {key: how(values) for (key, how), values in self.values.items() if values}


def record_step(
    scored: Sequence[ScoredCohort],
    sampled: SampledStep,
    embedded: Embedded,
    own_parts: Sequence[str] = (),
) -> StepRecord:
    """This rank's part of a step.

    Args:
        scored: its cohorts.
        sampled: how they came about.
        embedded: their embeddings.
        own_parts: names of the reward's parts that are the method's own.
    """
    record = StepRecord()
    for s in scored:
        _add_cohort(record, s, own_parts)
    left = sampled.sampled - len(sampled.cohorts)
    record.add("filter/kept_frac", [1.0] * len(sampled.cohorts) + [0.0] * left)
    record.add("filter/rounds", [sampled.rounds])
    record.add("filter/dropped_right", [sampled.dropped_right], Reduce.SUM)
    record.add("filter/dropped_wrong", [sampled.dropped_wrong], Reduce.SUM)
    if embedded.embeddings is not None:
        record.add("embed/cache_hit_frac", [embedded.cache_hit_frac])
    record.add("embed/fallbacks", [embedded.fallbacks], Reduce.SUM)
    return record


def join(records: Sequence[StepRecord]) -> StepRecord:
    """All ranks' parts as one, prompts by their position."""
    whole = StepRecord(
        order=sorted(prompt for record in records for prompt in record.order),
        num_tokens=sum(record.num_tokens for record in records),
    )
    for record in records:
        for (key, how), values in record.values.items():
            whole.add(key, values, how)
    return whole


def _add_cohort(record: StepRecord, s: ScoredCohort, own_parts: Sequence[str]) -> None:
    responses, verdicts = s.cohort.responses, s.cohort.verdicts
    lengths = [r.num_tokens for r in responses]
    record.order.append((s.cohort.prompt.position, s.cohort.prompt.prompt_id))
    record.num_tokens += sum(lengths)

    record.add("reward/accuracy/mean", [v.accuracy for v in verdicts])
    record.add("reward/format/mean", [v.format for v in verdicts])
    for name, part in s.reward_parts.items():
        if name not in ("accuracy", "format"):
            kind = "" if name == "overlong" or name in own_parts else "extra/"
            record.add(f"reward/{kind}{name}/mean", part.tolist())
    record.add("reward/total/mean", s.rewards.tolist())
    record.add("reward/total/std", s.rewards.tolist(), Reduce.STD)
    for reason in Reason:
        record.add(f"verdict/{reason}/frac", [float(v.reason == reason) for v in verdicts])

    record.add("response/length/mean", lengths)
    record.add("response/length/max", lengths, Reduce.MAX)
    record.add("response/length/min", lengths, Reduce.MIN)
    record.add("response/truncated/frac", [r.finish_reason.is_truncated for r in responses])

    sizes = np.unique(s.group_ids, return_counts=True)[1].tolist()
    record.add("group/size/min", sizes, Reduce.MIN)
    record.add("group/size/max", sizes, Reduce.MAX)
    for key, count in (("constant", s.num_constant), ("floored", s.num_floored)):
        record.add(f"group/{key}_frac", [1.0] * count + [0.0] * (len(sizes) - count))
    if s.embeddings is not None:
        record.add("diversity/pairwise", [pairwise_diversity(s.embeddings)])
        record.add("diversity/effective", [effective_strategies_of_embeddings(s.embeddings)])
    record.add("advantage/abs_mean", np.abs(s.advantages).tolist())
    record.add("advantage/zero_frac", (s.advantages == 0.0).tolist())
