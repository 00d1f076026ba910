"""The stages of a step between the prompts and the update: sample, judge, filter, embed, score."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mupo_ray.core.seeding import derive_seed
from mupo_ray.errors import EmbeddingError
from mupo_ray.rewards.extract import reasoning_span
from mupo_ray.rollout.pool import SamplingPlan
from mupo_ray.train.collective import gather_objects, total
from mupo_ray.types import Cohort

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mupo_ray.config import Config
    from mupo_ray.data.stream import PromptStream
    from mupo_ray.methods import Method
    from mupo_ray.rewards.verdicts import Verifier
    from mupo_ray.rollout.embedder import EmbedderPool
    from mupo_ray.rollout.pool import EnginePool
    from mupo_ray.settings.sections import FilterConfig
    from mupo_ray.train.clock import Clock
    from mupo_ray.train.encoding import EncodeAhead
    from mupo_ray.types import Prompt, Response

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class SampledStep:
    """What this rank trains on in a step, and how it came about."""

    cohorts: list[Cohort]
    rounds: int = 0
    sampled: int = 0
    """Cohorts sampled on this rank, kept or not."""
    dropped_right: int = 0
    dropped_wrong: int = 0
    dropped_surplus: int = 0


@dataclass(slots=True)
class Embedded:
    """Embeddings of a step's cohorts."""

    embeddings: list[np.ndarray] | None
    """[N, D] a cohort; None where the method needs none or embedding failed."""
    cache_hit_frac: float = 0.0
    fallbacks: int = 0


def sampling_plan(config: Config, step: int) -> SamplingPlan:
    """How this step samples; its seed is derived further by prompt and response."""
    rollout = config.rollout
    return SamplingPlan(
        num_generations=rollout.num_generations,
        max_new_tokens=rollout.max_new_tokens,
        temperature=rollout.temperature,
        top_p=rollout.top_p,
        seed=derive_seed(config.run.seed, "train", step),
    )


def sample_step(
    config: Config,
    step: int,
    *,
    stream: PromptStream,
    encoder: EncodeAhead,
    pool: EnginePool,
    verifier: Verifier,
    clock: Clock,
) -> SampledStep:
    """Sample and judge this rank's share of the step's cohorts (C).

    Prompts are encoded for the trainer meanwhile.

    With the filter on, cohorts without signal are replaced by further prompts until the step is
    full over all ranks or `filter.max_rounds` is reached; a surplus is cut by position, so that
    the choice does not depend on the number of ranks.
    """
    result = SampledStep(cohorts=[])
    want = config.data.prompts_per_step
    while True:
        with clock("rollout"):
            prompts = stream.next(want)
            encoder.begin(prompts)
            sampled = pool.generate(prompts, sampling_plan(config, step), version=step)
        with clock("judge"):
            cohorts = judge_cohorts(prompts, sampled, verifier)
        result.rounds += 1
        result.sampled += len(cohorts)
        _keep_informative(cohorts, config.filter, result)
        if not config.filter.enabled:
            return result
        if total(len(result.cohorts)) >= want or result.rounds >= config.filter.max_rounds:
            break
    _cut_surplus(result, want)
    return result


def judge_cohorts(
    prompts: Sequence[Prompt], sampled: Sequence[Sequence[Response]], verifier: Verifier
) -> list[Cohort]:
    """Give every response its verdict."""
    verdicts = verifier.verdicts_of(prompts, sampled)
    return [
        Cohort(prompt=prompt, responses=tuple(responses), verdicts=given)
        for prompt, responses, given in zip(prompts, sampled, verdicts, strict=True)
    ]


def _keep_informative(cohorts: Sequence[Cohort], rule: FilterConfig, result: SampledStep) -> None:
    """Keep what carries a signal, judged by accuracy alone: shaped rewards always differ."""
    for cohort in cohorts:
        if rule.enabled and cohort.accuracy_mean < rule.accuracy_low:
            result.dropped_wrong += 1
        elif rule.enabled and cohort.accuracy_mean > rule.accuracy_high:
            result.dropped_right += 1
        else:
            result.cohorts.append(cohort)


def _cut_surplus(result: SampledStep, want: int) -> None:
    mine = [c.prompt.position for c in result.cohorts]
    kept = set(sorted(p for ranks in gather_objects(mine) for p in ranks)[:want])
    result.dropped_surplus = sum(p not in kept for p in mine)
    result.cohorts = [c for c in result.cohorts if c.prompt.position in kept]


def embed_step(
    cohorts: Sequence[Cohort], method: Method[Any], embedder: EmbedderPool | None, on_failure: str
) -> Embedded:
    """Embed the reasoning of every response, where the method needs it.

    Raises:
        EmbeddingError: embedding failed and the config says to stop.
    """
    if not method.needs_embeddings or not cohorts or embedder is None:
        return Embedded(embeddings=None)
    try:
        vectors, hit_frac = embed_cohorts(cohorts, embedder)
    except EmbeddingError as err:
        if on_failure == "stop":
            raise
        logger.warning("cohorts of this step stay in one group each: %s", err)
        return Embedded(embeddings=None, fallbacks=len(cohorts))
    return Embedded(embeddings=vectors, cache_hit_frac=hit_frac)


def embed_cohorts(
    cohorts: Sequence[Cohort], embedder: EmbedderPool
) -> tuple[list[np.ndarray], float]:
    """[N, D] unit rows a cohort, and the share of texts found in the embedder's cache."""
    texts = [reasoning_span(r.text) for c in cohorts for r in c.responses]
    vectors, hit_frac = embedder.embed(texts)
    ends = np.cumsum([len(c.responses) for c in cohorts])[:-1]
    return np.split(vectors, ends), hit_frac
