"""Evaluation on held-out prompts: acc@1, any-of-4, pass@k, diversity.

Each rank takes every world-size-th prompt; rank 0 reduces. Sampling is at temperature 1 whatever
training samples at, so that numbers of different runs compare.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from mupo_ray.core.seeding import derive_seed
from mupo_ray.errors import EmbeddingError
from mupo_ray.evaluation.judging import Question, embed_problems, judge_problems
from mupo_ray.evaluation.values import any_values, fewest_samples, pass_values, plain_values
from mupo_ray.rollout.pool import SamplingPlan
from mupo_ray.types import SampledResponse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mupo_ray.config import Config
    from mupo_ray.evaluation.samples import EvaluatedProblem
    from mupo_ray.rewards.verdicts import Verifier
    from mupo_ray.rollout.embedder import EmbedderPool
    from mupo_ray.rollout.pool import EnginePool
    from mupo_ray.types import Prompt

logger = logging.getLogger(__name__)

# The paper's acc@4 takes exactly four samples.
_ANY_OF = 4
_METRICS = (
    *("acc@1", "acc@1_sampled", "diversity", "effective_strategies"),
    *("length", "truncated_frac", "format"),
)


def evaluate(
    config: Config,
    prompts: Sequence[Prompt],
    *,
    version: int,
    pool: EnginePool,
    verifier: Verifier,
    embedder: EmbedderPool | None,
) -> list[EvaluatedProblem]:
    """Evaluate this rank's prompts as a run's `eval` section says; not collective.

    The seeds depend on the run and the prompt but not on the step, so that curves over steps differ
    by the policy alone.
    """
    if not prompts:
        return []
    plan = SamplingPlan(
        num_generations=config.eval.num_samples,
        max_new_tokens=config.rollout.max_new_tokens,
        temperature=1.0,
        top_p=1.0,
        seed=derive_seed(config.run.seed, "eval"),
    )
    problems = sample_problems(
        config.eval.name, prompts, plan, version, pool=pool, verifier=verifier
    )
    if embedder is None:
        return problems
    try:
        return embed_problems(problems, embedder)
    except EmbeddingError as err:
        if config.embedder.on_failure == "stop":
            raise
        logger.warning("version %d is evaluated without diversity: %s", version, err)
        return problems


def sample_problems(
    set_name: str,
    prompts: Sequence[Prompt],
    plan: SamplingPlan,
    version: int,
    *,
    pool: EnginePool,
    verifier: Verifier,
) -> list[EvaluatedProblem]:
    """A greedy answer and samples of each prompt, judged.

    Args:
        set_name: of the prompts' set.
        prompts: any number.
        plan: how the samples are drawn.
        version: policy version that must answer.
        pool: engines that hold it.
        verifier: judges.

    Raises:
        RolloutError: no engine answered.
    """
    greedy_plan = replace(plan, num_generations=1, temperature=0.0, top_p=1.0, seed=0)
    greedy, samples = (
        [
            [SampledResponse.of(response) for response in responses]
            for responses in pool.generate(prompts, each, version=version)
        ]
        for each in (greedy_plan, plan)
    )
    return judge_problems(set_name, [Question.of(p) for p in prompts], greedy, samples, verifier)


def eval_metrics(
    problems: Sequence[EvaluatedProblem], name: str, pass_k: Sequence[int]
) -> dict[str, float]:
    """Metrics of all ranks' problems, under `eval/<name>/...`.

    Args:
        problems: with a greedy answer and equally many samples each.
        name: of the set.
        pass_k: values of k for the unbiased estimator.
    """
    metrics = {"questions": float(len(problems))}
    for measure in _METRICS:
        values = plain_values(problems, measure)
        # A rank whose embedder failed leaves its problems without a value.
        values = values[~np.isnan(values)]
        if values.size:
            metrics[measure] = float(values.mean())
    if fewest_samples(problems) >= _ANY_OF:
        metrics[f"acc@{_ANY_OF}"] = float(any_values(problems, [_ANY_OF]).mean())
    for k, row in zip(pass_k, pass_values(problems, pass_k), strict=True):
        metrics[f"pass@{k}"] = float(row.mean())
    return {f"eval/{name}/{key}": value for key, value in metrics.items()}
