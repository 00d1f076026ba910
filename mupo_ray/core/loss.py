"""Token losses of policy-gradient methods, KL estimators, entropy and global reductions.

Layout: the response tokens of a micro-batch lie end to end in flat [T] tensors, without padding;
`sequence_index` [T] says which sequence of the micro-batch each belongs to and `mask` [T] which
tokens count. V = vocabulary. Where the mask is false a token adds exactly nothing to a value or a
gradient, even if its log-probabilities are infinite or NaN.

Reductions divide by the counts of the whole global batch, so that summing micro-batches (and ranks)
gives what one batch would have.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import torch
from torch import Tensor

# Log-ratios are held in [-20, 20] before exp, as in EasyR1 and verl: exp(20) = 4.9e8 is still
# finite when squared in float32, and no usable ratio is anywhere near.
_MAX_LOG_RATIO = 20.0


class Reduction(StrEnum):
    """How token losses of the global batch become one number."""

    TOKEN_MEAN = "token_mean"
    """Sum over tokens / number of tokens (DAPO, EasyR1, the released MUPO code)."""
    SEQUENCE_MEAN = "sequence_mean"
    """Mean over sequences of the mean over their tokens (GRPO, GSPO)."""
    CONSTANT_LENGTH = "constant_length"
    """Sum over tokens / (number of sequences * the longest length allowed) (Dr.GRPO)."""


class KlEstimator(StrEnum):
    """Single-sample estimators of KL(policy || reference), d = log reference - log policy."""

    K1 = "k1"
    """-d: unbiased, can be negative; its gradient has mean zero, so not a loss."""
    K2 = "k2"
    """d**2 / 2."""
    K3 = "k3"
    """exp(d) - d - 1: unbiased, never negative."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Denominators:
    """Counts over the global batch of one optimiser step: all ranks, all micro-batches."""

    num_tokens: int
    """Tokens whose mask is true."""
    num_sequences: int
    """Sequences with such a token."""
    max_length: int
    """Longest response allowed, in tokens."""

    def __post_init__(self) -> None:
        """Reject counts that would divide by zero."""
        if min(self.num_tokens, self.num_sequences, self.max_length) < 1:
            raise ValueError(f"counts over the global batch must be at least 1, got {self}")


class Surrogate(NamedTuple):
    """Clipped policy loss of each token, and where a clip took the gradient away."""

    losses: Tensor
    """[T]."""
    is_clipped: Tensor
    """[T] bool: the ratio left the clip range on the side that its advantage favours."""
    is_dual_clipped: Tensor
    """[T] bool: the bound for negative advantages held."""


class Mismatch(NamedTuple):
    """Sums over tokens with a sampler log-probability, to be added over micro-batches and ranks."""

    sum_abs_diff: Tensor
    """Scalar: sum of |policy - sampler| log-probability."""
    num_tokens: Tensor
    """Scalar: tokens compared."""


def sequence_index(lengths: Tensor) -> Tensor:
    """[T] sequence of each token, from the [B] lengths of sequences laid end to end."""
    return torch.repeat_interleave(torch.arange(lengths.shape[0], device=lengths.device), lengths)


def token_logprobs(logits: Tensor, token_ids: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Log-probability of each token under softmax(logits / temperature).

    The division comes before the softmax, as in the sampler; dividing a log-probability is not the
    same.

    Args:
        logits: [T, V], row t from the position that predicts token t.
        token_ids: [T].
        temperature: the sampling temperature, above 0.

    Returns:
        [T] float32.
    """
    scaled = _scaled(logits, temperature)
    chosen = scaled.gather(-1, token_ids.unsqueeze(-1)).squeeze(-1)
    return chosen - torch.logsumexp(scaled, -1)


def next_token_logprobs(logits: Tensor, input_ids: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Log-probabilities of tokens 1..T-1 of one sequence: token t is scored by logits t - 1.

    Args:
        logits: [T, V] as a causal model returns them.
        input_ids: [T] the tokens it read.
        temperature: the sampling temperature, above 0.

    Returns:
        [T - 1] float32.
    """
    return token_logprobs(logits[:-1], input_ids[1:], temperature=temperature)


def entropy(logits: Tensor, *, temperature: float = 1.0) -> Tensor:
    """[T] entropy in nats of softmax(logits / temperature); forbidden tokens may hold -inf.

    Args:
        logits: [T, V].
        temperature: the sampling temperature, above 0.

    Returns:
        [T] float32.
    """
    logprobs = torch.log_softmax(_scaled(logits, temperature), -1)
    # 0 * -inf is NaN, in the value and in the gradient.
    finite = logprobs.masked_fill(logprobs == -torch.inf, 0.0)
    return -(logprobs.exp() * finite).sum(-1)


def importance_ratio(policy_logprobs: Tensor, old_logprobs: Tensor, mask: Tensor) -> Tensor:
    """Ratio of the trained to the old policy at each token, exp of the held log-ratio.

    Args:
        policy_logprobs: [T] with gradient.
        old_logprobs: [T]; NaN where missing. Such a token has ratio 1 and the gradient of an
            on-policy one.
        mask: [T] bool.

    Returns:
        [T] ratios; 1 without gradient where the mask is false.
    """
    return _log_ratio(policy_logprobs, old_logprobs, mask).exp()


def sequence_ratio(
    policy_logprobs: Tensor, old_logprobs: Tensor, mask: Tensor, sequence_index: Tensor
) -> Tensor:
    """GSPO's ratio (arXiv:2507.18071): exp of the mean log-ratio of the token's sequence.

    Token form: every token of a sequence has the sequence's value, and the gradient of its own
    log-probability times that value.

    Args:
        policy_logprobs: [T] with gradient.
        old_logprobs: [T]; NaN where missing, counted as log-ratio 0.
        mask: [T] bool.
        sequence_index: [T].

    Returns:
        [T] ratios.
    """
    log_ratio = _log_ratio(policy_logprobs, old_logprobs, mask)
    totals, counts = _sequence_sums(log_ratio.detach(), mask, sequence_index)
    value = (totals / counts)[sequence_index].exp()
    own = _fill(policy_logprobs, mask)
    return value * (own - own.detach()).exp()


def clipped_surrogate(
    ratio: Tensor,
    advantages: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> Surrogate:
    """PPO's clipped loss with its own bound on each side, and the optional dual clip.

    max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)); where A < 0, at most -A * dual_clip.

    Args:
        ratio: [T].
        advantages: [T].
        clip_low: share below 1 the ratio may fall to, in [0, 1).
        clip_high: share above 1 it may rise to (DAPO's clip-higher when above `clip_low`).
        dual_clip: bound on the ratio for negative advantages, above 1 (arXiv:1912.09729); None is
            off.

    Returns:
        Losses and where they were clipped.

    Raises:
        ValueError: a bound is out of range.
    """
    if not (0.0 <= clip_low < 1.0 and clip_high >= 0.0):
        raise ValueError(
            f"need 0 <= clip_low < 1 and clip_high >= 0, got {clip_low} and {clip_high}"
        )
    if dual_clip is not None and not dual_clip > 1.0:
        raise ValueError(f"dual_clip must be above 1, or None for off, got {dual_clip}")
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    losses = torch.maximum(plain, clipped)
    is_clipped = clipped > plain
    is_dual_clipped = torch.zeros_like(is_clipped)
    if dual_clip is not None:
        bound = -advantages * dual_clip
        is_dual_clipped = (advantages < 0.0) & (losses > bound)
        losses = torch.where(is_dual_clipped, bound, losses)
    return Surrogate(losses, is_clipped, is_dual_clipped)


def kl_estimate(
    policy_logprobs: Tensor, ref_logprobs: Tensor, mask: Tensor, *, estimator: KlEstimator | str
) -> Tensor:
    """Estimate KL(policy || reference) at each sampled token.

    k3 grows as exp(d), which overflows float32 at d = 89; d is held at 20 from above, where value
    and gradient stop growing (the gradient is then 0). Holding it in the exponential alone would
    leave -d with a gradient of the wrong sign. Below, d is left alone: k3 is linear there, and a
    token that the reference finds impossible keeps its pull.

    Args:
        policy_logprobs: [T] with gradient.
        ref_logprobs: [T].
        mask: [T] bool.
        estimator: `k1`, `k2` or `k3`.

    Returns:
        [T] estimates; 0 where the mask is false.
    """
    diff = _fill(ref_logprobs, mask) - _fill(policy_logprobs, mask)
    kind = KlEstimator(estimator)
    if kind is KlEstimator.K1:
        return -diff
    if kind is KlEstimator.K2:
        return 0.5 * diff.square()
    capped = diff.clamp(max=_MAX_LOG_RATIO)
    # expm1 keeps small values from cancelling to rounding noise, which could be negative.
    return (torch.expm1(capped) - capped).clamp(min=0.0)


def truncated_importance_weights(
    old_logprobs: Tensor, sampler_logprobs: Tensor, mask: Tensor, *, max_weight: float
) -> Tensor:
    """Correct for a sampler that is not quite the policy: min(pi_old / pi_sampler, max_weight).

    Args:
        old_logprobs: [T] of the policy before the update, as the trainer computes them.
        sampler_logprobs: [T] as the engine reported them; NaN where missing, which gives weight 1.
        mask: [T] bool.
        max_weight: bound from above.

    Returns:
        [T] weights without gradient; 1 where the mask is false.
    """
    return _log_ratio(old_logprobs, sampler_logprobs, mask).detach().exp().clamp(max=max_weight)


def logprob_mismatch(policy_logprobs: Tensor, sampler_logprobs: Tensor, mask: Tensor) -> Mismatch:
    """Compare the trainer's log-probabilities with the sampler's, skipping missing ones.

    Args:
        policy_logprobs: [T].
        sampler_logprobs: [T]; NaN where missing.
        mask: [T] bool.

    Returns:
        Sums to be added over micro-batches and ranks.
    """
    known = mask & ~sampler_logprobs.isnan()
    diff = _fill(policy_logprobs.detach(), known) - _fill(sampler_logprobs, known)
    return Mismatch(diff.abs().sum(), known.sum())


def reduce_losses(
    losses: Tensor,
    mask: Tensor,
    sequence_index: Tensor,
    *,
    reduction: Reduction | str,
    denominators: Denominators,
) -> Tensor:
    """Share of a micro-batch in the loss of the global batch; shares add up to it.

    A trainer whose gradients are averaged over R ranks multiplies by R. A sequence lies in one
    micro-batch whole. A rank without data passes empty tensors and gets a zero with a gradient.

    Args:
        losses: [T] token losses.
        mask: [T] bool.
        sequence_index: [T].
        reduction: see `Reduction`.
        denominators: counts over the global batch.

    Returns:
        Scalar.
    """
    kept = _fill(losses, mask)
    kind = Reduction(reduction)
    if kind is Reduction.TOKEN_MEAN:
        return kept.sum() / denominators.num_tokens
    if kind is Reduction.CONSTANT_LENGTH:
        return kept.sum() / (denominators.num_sequences * denominators.max_length)
    totals, counts = _sequence_sums(kept, mask, sequence_index)
    return (totals / counts).sum() / denominators.num_sequences


def _scaled(logits: Tensor, temperature: float) -> Tensor:
    if not temperature > 0.0:
        raise ValueError(f"temperature must be above 0, got {temperature}")
    return logits.float() / temperature


def _fill(values: Tensor, mask: Tensor) -> Tensor:
    """Values where the mask is true, else a 0 that passes no gradient back (0 * inf is NaN)."""
    return torch.where(mask, values, torch.zeros_like(values))


def _log_ratio(new: Tensor, old: Tensor, mask: Tensor) -> Tensor:
    """[T] new - old held in range; 0 where masked or where old is missing (NaN)."""
    new = _fill(new, mask)
    old = torch.where(mask & ~old.isnan(), old, new.detach())
    return (new - old).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)


def _sequence_sums(values: Tensor, mask: Tensor, sequence_index: Tensor) -> tuple[Tensor, Tensor]:
    """[B] sum of masked-in values and number of tokens (at least 1) of each sequence."""
    num = int(sequence_index.max()) + 1 if sequence_index.numel() else 0
    totals = values.new_zeros(num).index_add(0, sequence_index, values)
    counts = values.new_zeros(num).index_add(0, sequence_index, mask.to(values.dtype))
    return totals, counts.clamp(min=1.0)
