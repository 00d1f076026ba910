"""Evaluation during training, without engines: what a rank without prompts does."""

from __future__ import annotations

from mupo_ray.config import Config
from mupo_ray.evaluation.during_training import evaluate
from mupo_ray.rewards.algebra_pool import default_algebra_pool
from mupo_ray.rewards.verdicts import Verifier
from mupo_ray.rollout.embedder import EmbedderPool
from mupo_ray.rollout.pool import EnginePool


def test_a_rank_without_prompts_has_no_problems():
    # More workers than held-out prompts: nothing is asked of engines or embedders.
    pool = EnginePool([], forbidden_ids=(), max_num_seqs=1, request_timeout_s=1.0)
    found = evaluate(
        Config(),
        [],
        version=0,
        pool=pool,
        verifier=Verifier(algebra_pool=default_algebra_pool()),
        embedder=EmbedderPool((), 1.0),
    )
    assert found == []
