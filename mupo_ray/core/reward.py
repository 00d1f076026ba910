"""How reward parts add up: MUPO's two published forms, its annealings, DAPO's length penalty.

N = responses to one prompt. Parts come weighted: a response's reward is the sum of its parts.
Source: MUPO, arXiv:2604.00479, and its released code; DAPO, arXiv:2503.14476.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def paper_reward_parts(
    accuracy: ArrayLike, format_: ArrayLike, diversity: ArrayLike, *, diversity_weight: float
) -> dict[str, Floats]:
    """R_acc + R_fmt + weight * 1[R_acc = 1] * R_div, as the paper writes it.

    The paper states no weights for the first two; they count alike.

    Args:
        accuracy: [N] 1 right, 0 not.
        format_: [N] 1 well formed, 0 not.
        diversity: [N] mean distance to the other groups, see `diversity.py`.
        diversity_weight: of diversity, at this step.

    Returns:
        The [N] parts `accuracy`, `format` and `diversity`.
    """
    acc, fmt, div = _columns(accuracy, format_, diversity)
    return {
        "accuracy": acc,
        "format": fmt,
        "diversity": diversity_weight * np.where(acc >= 1.0, div, 0.0),
    }


def release_reward_parts(
    accuracy: ArrayLike,
    format_: ArrayLike,
    diversity: ArrayLike | None,
    *,
    diversity_weight: float,
    format_weight: float = 0.1,
) -> dict[str, Floats]:
    """(1 - w_f - w) R_acc + w_f R_fmt + w * 1[R_acc = 1] * 2 R_div, as the released code has it.

    Without groups (`diversity` None) w is 0, which makes it (1 - w_f) R_acc + w_f R_fmt. Pass None
    for K = 1: otherwise accuracy would lose the weight that no diversity makes up for.

    Args:
        accuracy: [N] 1 right, 0 not.
        format_: [N] 1 well formed, 0 not.
        diversity: [N] mean distance to the other groups, in the paper's scale; None without groups.
        diversity_weight: w, at this step.
        format_weight: w_f.

    Returns:
        The [N] parts `accuracy`, `format` and `diversity`.

    Raises:
        ValueError: the two weights leave nothing for accuracy.
    """
    weight = 0.0 if diversity is None else diversity_weight
    accuracy_weight = 1.0 - format_weight - weight
    if accuracy_weight < 0.0:
        raise ValueError(
            f"format_weight + diversity_weight = {format_weight + weight} exceeds 1; lower one"
        )
    acc, fmt, div = _columns(
        accuracy, format_, np.zeros(np.shape(accuracy)) if diversity is None else diversity
    )
    return {
        "accuracy": accuracy_weight * acc,
        "format": format_weight * fmt,
        "diversity": weight * np.where(acc >= 1.0, 2.0 * div, 0.0),
    }


def cosine_weight(step: int, num_steps: int, *, high: float, low: float) -> float:
    """Diversity weight that falls from `high` at step 0 to `low` at `num_steps` (the paper).

    Args:
        step: finished optimiser steps, from 0; beyond `num_steps` the weight stays `low`.
        num_steps: length of the annealing, at least 1.
        high: first weight.
        low: last weight.

    Returns:
        low + (high - low) / 2 * (1 + cos(pi * step / num_steps)).

    Raises:
        ValueError: `num_steps` is below 1 or `step` is negative.
    """
    if num_steps < 1 or step < 0:
        raise ValueError(f"need num_steps >= 1 and step >= 0, got {num_steps} and {step}")
    progress = min(step / num_steps, 1.0)
    return low + (high - low) / 2.0 * (1.0 + math.cos(math.pi * progress))


def exponential_weight(step: int, *, initial: float, decay: float) -> float:
    """Diversity weight initial * exp(-decay * step) (the released code).

    Args:
        step: optimiser step; the released code counts from 1.
        initial: weight at step 0.
        decay: rate a step.

    Returns:
        The weight.
    """
    return initial * math.exp(-decay * step)


def overlong_penalty(
    num_tokens: ArrayLike, *, max_tokens: int, buffer_tokens: int, factor: float = 1.0
) -> Floats:
    """DAPO's soft penalty on length, 0 down to -factor over the last `buffer_tokens`.

    Args:
        num_tokens: [N] lengths of responses.
        max_tokens: longest response that can be sampled; from there on the penalty is -factor.
        buffer_tokens: length of the ramp.
        factor: size of the full penalty.

    Returns:
        [N] penalties, 0 or negative, to be added to the rewards.

    Raises:
        ValueError: the ramp is empty or longer than a response can be.
    """
    if not 0 < buffer_tokens <= max_tokens:
        raise ValueError(
            f"buffer_tokens must be in 1..max_tokens = {max_tokens}, got {buffer_tokens}"
        )
    over = np.asarray(num_tokens, np.float64) - (max_tokens - buffer_tokens)
    penalty: Floats = -factor * np.clip(over / buffer_tokens, 0.0, 1.0)
    return penalty + 0.0


def _columns(accuracy: ArrayLike, format_: ArrayLike, diversity: ArrayLike) -> list[Floats]:
    columns = [np.asarray(part, np.float64) for part in (accuracy, format_, diversity)]
    shapes = [part.shape for part in columns]
    if len(set(shapes)) != 1 or len(shapes[0]) != 1:
        raise ValueError(f"accuracy, format and diversity must be [N] alike, got {shapes}")
    return columns
