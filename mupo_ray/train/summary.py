"""Metrics of a step over all ranks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from mupo_ray.core.diversity import effective_strategies_of_embeddings, pairwise_diversity
from mupo_ray.types import Reason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mupo_ray.train.stages import Embedded, SampledStep
    from mupo_ray.types import ScoredCohort


@dataclass(slots=True)
class StepRecord:
    """One rank's plain values of a step; ranks' records are joined and then reduced."""

    parts: dict[str, list[float]] = field(default_factory=dict)
    rewards: list[float] = field(default_factory=list)
    advantages: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    truncated: list[bool] = field(default_factory=list)
    formats: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    group_sizes: list[int] = field(default_factory=list)
    num_constant: int = 0
    num_floored: int = 0
    pairwise: list[float] = field(default_factory=list)
    effective: list[float] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """Sums over ranks: cohorts sampled, dropped, embedding fallbacks."""
    cache_hits: list[float] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    prompt_ids: list[str] = field(default_factory=list)


def record_step(
    scored: Sequence[ScoredCohort], sampled: SampledStep, embedded: Embedded
) -> StepRecord:
    """This rank's values."""
    record = StepRecord()
    for s in scored:
        for name, part in s.reward_parts.items():
            record.parts.setdefault(name, []).extend(part.tolist())
        record.rewards += s.rewards.tolist()
        record.advantages += s.advantages.tolist()
        record.lengths += [r.num_tokens for r in s.cohort.responses]
        record.truncated += [r.finish_reason.is_truncated for r in s.cohort.responses]
        record.accuracies += [v.accuracy for v in s.cohort.verdicts]
        record.formats += [v.format for v in s.cohort.verdicts]
        record.reasons.update(str(v.reason) for v in s.cohort.verdicts)
        record.group_sizes += np.unique(s.group_ids, return_counts=True)[1].tolist()
        record.num_constant += s.num_constant
        record.num_floored += s.num_floored
        if s.embeddings is not None:
            record.pairwise.append(pairwise_diversity(s.embeddings))
            record.effective.append(effective_strategies_of_embeddings(s.embeddings))
        record.positions.append(s.cohort.prompt.position)
        record.prompt_ids.append(s.cohort.prompt.prompt_id)
    record.counts.update(
        sampled=sampled.sampled,
        kept=len(sampled.cohorts),
        dropped_right=sampled.dropped_right,
        dropped_wrong=sampled.dropped_wrong,
        rounds=sampled.rounds,
        fallbacks=embedded.fallbacks,
    )
    if embedded.embeddings is not None:
        record.cache_hits.append(embedded.cache_hit_frac)
    return record


def join(records: Sequence[StepRecord]) -> StepRecord:
    """All ranks' values as one record."""
    whole = StepRecord()
    for record in records:
        for name, values in record.parts.items():
            whole.parts.setdefault(name, []).extend(values)
        for name in StepRecord.__slots__:
            mine, theirs = getattr(whole, name), getattr(record, name)
            if isinstance(mine, list):
                mine.extend(theirs)
            elif isinstance(mine, Counter):
                mine.update(theirs)
            elif isinstance(mine, int):
                setattr(whole, name, mine + theirs)
    return whole


def metrics_of(record: StepRecord, num_ranks: int) -> dict[str, float]:
    """Metric keys of a joined record; means of what was not measured are left out."""
    counts = record.counts
    found = {
        "reward/accuracy/mean": _mean(record.accuracies),
        "reward/format/mean": _mean(record.formats),
        "reward/total/mean": _mean(record.rewards),
        "reward/total/std": float(np.std(record.rewards)) if record.rewards else None,
        "response/length/mean": _mean(record.lengths),
        "response/length/max": max(record.lengths, default=None),
        "response/length/min": min(record.lengths, default=None),
        "response/truncated/frac": _mean(record.truncated),
        "group/size/min": min(record.group_sizes, default=None),
        "group/size/max": max(record.group_sizes, default=None),
        "group/constant_frac": _share(record.num_constant, len(record.group_sizes)),
        "group/floored_frac": _share(record.num_floored, len(record.group_sizes)),
        "diversity/pairwise": _mean(record.pairwise),
        "diversity/effective": _mean(record.effective),
        "advantage/abs_mean": _mean([abs(a) for a in record.advantages]),
        "advantage/zero_frac": _mean([a == 0.0 for a in record.advantages]),
        "filter/kept_frac": _share(counts["kept"], counts["sampled"]),
        "filter/rounds": counts["rounds"] / num_ranks,
        "filter/dropped_right": counts["dropped_right"],
        "filter/dropped_wrong": counts["dropped_wrong"],
        "embed/cache_hit_frac": _mean(record.cache_hits),
        "embed/fallbacks": counts["fallbacks"],
    }
    for name, values in record.parts.items():
        if name not in ("accuracy", "format"):
            kind = "" if name in ("diversity", "overlong") else "extra/"
            found[f"reward/{kind}{name}/mean"] = _mean(values)
    for reason in Reason:
        found[f"verdict/{reason}/frac"] = _share(record.reasons[str(reason)], len(record.rewards))
    return {name: float(value) for name, value in found.items() if value is not None}


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
