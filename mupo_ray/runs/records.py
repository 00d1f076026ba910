"""Sampled cohorts as parquet: what a person or a script reads later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from mupo_ray.files import whole

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mupo_ray.types import ScoredCohort


def cohort_rows(scored: Sequence[ScoredCohort]) -> list[dict[str, Any]]:
    """One row a response: everything that can be traced of it."""
    return [
        {
            "prompt_id": s.cohort.prompt.prompt_id,
            "position": s.cohort.prompt.position,
            "question": s.cohort.prompt.question,
            "answer": s.cohort.prompt.answer,
            "image_sha256": [image.sha256 for image in s.cohort.prompt.images],
            "response_index": i,
            "text": r.text,
            "completion_ids": r.completion_ids.tolist(),
            "sampler_logprobs": r.sampler_logprobs.tolist(),
            "finish_reason": str(r.finish_reason),
            "policy_version": r.policy_version,
            "seed": r.seed,
            "engine": r.engine,
            "accuracy": v.accuracy,
            "format": v.format,
            "extracted": v.extracted,
            "reason": str(v.reason),
            "group_id": int(s.group_ids[i]),
            "reward": float(s.rewards[i]),
            "reward_parts": {name: float(part[i]) for name, part in s.reward_parts.items()},
            "advantage": float(s.advantages[i]),
            "embedding": None if s.embeddings is None else s.embeddings[i].tolist(),
        }
        for s in scored
        for i, (r, v) in enumerate(zip(s.cohort.responses, s.cohort.verdicts, strict=True))
    ]


def save_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows as parquet, whole or not at all."""
    with whole(path) as draft:
        pq.write_table(pa.Table.from_pylist(list(rows)), draft)
