"""A reward of one's own, as a user would have it on PYTHONPATH."""

from __future__ import annotations

from collections.abc import Mapping

from mupo_ray.rewards.extra import RewardContext


def brevity(parts: Mapping[str, float], context: RewardContext) -> float:
    """1 for one token, less for more."""
    return 1.0 / context.num_tokens
