"""Evaluation on held-out prompts: acc@1, any-of-4, pass@k, diversity.

Each rank takes every world-size-th prompt; rank 0 reduces. Sampling is at temperature 1 whatever
training samples at, so that numbers of different runs compare.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mupo_ray.core.diversity import effective_strategies_of_embeddings, pairwise_diversity
from mupo_ray.core.passk import any_of_k, pass_at_k_map
from mupo_ray.core.seeding import derive_seed
from mupo_ray.errors import EmbeddingError
from mupo_ray.rollout.pool import SamplingPlan
from mupo_ray.train.stages import embed_cohorts, judge_cohorts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mupo_ray.config import Config
    from mupo_ray.rewards.verifier import Verifier
    from mupo_ray.rollout.embedder import EmbedderPool
    from mupo_ray.rollout.pool import EnginePool
    from mupo_ray.types import Prompt

logger = logging.getLogger(__name__)

# The paper's acc@4 takes exactly four samples.
_ANY_OF = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRecord:
    """What one prompt showed."""

    prompt_id: str
    position: int
    greedy_correct: bool
    greedy_text: str
    correct: list[bool]
    """Of each sample, in order."""
    texts: list[str]
    extracted: list[str | None]
    answer: str
    formats: list[float]
    lengths: list[int]
    truncated: list[bool]
    diversity: float | None
    """Mean cosine distance over pairs of samples; None where embedding is off."""
    effective_strategies: float | None


def evaluate(
    config: Config,
    prompts: Sequence[Prompt],
    *,
    version: int,
    pool: EnginePool,
    verifier: Verifier,
    embedder: EmbedderPool | None,
) -> list[EvalRecord]:
    """Sample and judge this rank's prompts; not collective.

    The seeds depend on the run and the prompt but not on the step, so that curves over steps differ
    by the policy alone.
    """
    if not prompts:
        return []
    limit = config.rollout.max_new_tokens
    greedy_plan = SamplingPlan(
        num_generations=1, max_new_tokens=limit, temperature=0.0, top_p=1.0, seed=0
    )
    sampled_plan = SamplingPlan(
        num_generations=config.eval.num_samples,
        max_new_tokens=limit,
        temperature=1.0,
        top_p=1.0,
        seed=derive_seed(config.run.seed, "eval"),
    )
    greedy = judge_cohorts(prompts, pool.generate(prompts, greedy_plan, version=version), verifier)
    sampled = judge_cohorts(
        prompts, pool.generate(prompts, sampled_plan, version=version), verifier
    )
    vectors: list[np.ndarray] | None = None
    if embedder is not None and config.eval.num_samples > 1:
        try:
            vectors, _ = embed_cohorts(sampled, embedder)
        except EmbeddingError as err:
            if config.embedder.on_failure == "stop":
                raise
            logger.warning("version %d is evaluated without diversity: %s", version, err)
    return [
        EvalRecord(
            prompt_id=s.prompt.prompt_id,
            position=s.prompt.position,
            greedy_correct=g.verdicts[0].is_correct,
            greedy_text=g.responses[0].text,
            correct=[v.is_correct for v in s.verdicts],
            texts=[r.text for r in s.responses],
            extracted=[v.extracted for v in s.verdicts],
            answer=s.prompt.answer,
            formats=[v.format for v in s.verdicts],
            lengths=[r.num_tokens for r in s.responses],
            truncated=[r.finish_reason.is_truncated for r in s.responses],
            diversity=None if vectors is None else pairwise_diversity(vectors[i]),
            effective_strategies=(
                None if vectors is None else effective_strategies_of_embeddings(vectors[i])
            ),
        )
        for i, (g, s) in enumerate(zip(greedy, sampled, strict=True))
    ]


def eval_metrics(
    records: Sequence[EvalRecord], name: str, pass_k: Sequence[int]
) -> dict[str, float]:
    """Metrics of all ranks' records, under `eval/<name>/...`.

    Args:
        records: one a prompt.
        name: of the set.
        pass_k: values of k for the unbiased estimator.
    """
    num_samples = len(records[0].correct)
    found = {
        "questions": float(len(records)),
        "acc@1": float(np.mean([r.greedy_correct for r in records])),
        "acc@1_sampled": float(np.mean([r.correct for r in records])),
        "length": float(np.mean([r.lengths for r in records])),
        "truncated_frac": float(np.mean([r.truncated for r in records])),
        "format": float(np.mean([r.formats for r in records])),
    }
    if num_samples >= _ANY_OF:
        found["acc@4"] = float(np.mean(any_of_k([r.correct for r in records], _ANY_OF)))
    counts = [(num_samples, sum(r.correct)) for r in records]
    for k, value in pass_at_k_map(counts, pass_k).items():
        found[f"pass@{k}"] = value
    diversity = [r.diversity for r in records if r.diversity is not None]
    effective = [r.effective_strategies for r in records if r.effective_strategies is not None]
    if diversity:
        found["diversity"] = float(np.mean(diversity))
        found["effective_strategies"] = float(np.mean(effective))
    return {f"eval/{name}/{key}": value for key, value in found.items()}
