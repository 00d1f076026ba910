"""One training step's update: micro-batches -> log-probs -> loss -> optimizer steps.

Every function marked C is collective: all ranks call it the same number of times, a rank without
data included. Losses are divided by counts of the whole global batch, so that neither the number
of ranks nor of micro-batches shows in the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from mupo_ray.core.loss import (
    Denominators,
    clipped_surrogate,
    importance_ratio,
    kl_estimate,
    logprob_mismatch,
    reduce_losses,
    sequence_index,
    truncated_importance_weights,
)
from mupo_ray.errors import TrainingError
from mupo_ray.train.batch import MicroBatch, TrainItem, empty_micro_batch, micro_batches
from mupo_ray.types import Tokens

if TYPE_CHECKING:
    from mupo_ray.methods import Method
    from mupo_ray.settings.sections import LossConfig
    from mupo_ray.train.policy import DeepSpeedPolicy, LogprobModel

# Shares of the loss and sums over tokens that add up over micro-batches and ranks.
_SHARES = ("loss/total", "loss/policy", "loss/kl", "loss/entropy")
_SUMS = ("loss/clip_frac", "loss/dual_clip_frac", "loss/ratio_mean", "sync/logprob_diff_mean")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdatePlan:
    """What one optimizer step trains on, on this rank."""

    batches: list[MicroBatch]
    """As many on every rank."""
    num_tokens: int
    """Response tokens that the policy chose, over all ranks."""
    num_responses: int
    """Responses over all ranks."""


def train_step(
    policy: DeepSpeedPolicy,
    reference: LogprobModel | None,
    items: Sequence[TrainItem],
    method: Method[Any] | None = None,
) -> dict[str, float]:
    """All optimizer steps that share one rollout (C).

    Args:
        policy: the model to train, with its config.
        reference: frozen model of the KL term; None where `loss.kl_coef` is 0.
        items: this rank's cohorts; may be empty.
        method: whose terms are added to the loss; None where there are none.

    Returns:
        Metrics of the global batch, the same on all ranks; means over the optimizer steps.
        `sync/logprob_diff_*` compare the policy with the sampler over all tokens of the first one.

    Raises:
        TrainingError: a loss or gradient is not finite, on any rank; all ranks raise it, and the
            weights are those of the last good optimizer step.
    """
    config = policy.config
    plans = plan_updates(policy, items)
    if config.loss.old_logprobs == "recompute":
        # They belong to the weights before the first of the step's updates.
        old = [logprobs(policy, p.batches, config.rollout.temperature) for p in plans]
    else:
        old = [[batch.sampler_logprobs.to(policy.device) for batch in p.batches] for p in plans]
    stats: list[dict[str, float]] = []
    for plan, old_logprobs in zip(plans, old, strict=True):
        ref = None
        if reference is not None:
            ref = logprobs(reference, plan.batches, config.rollout.temperature)
        stats.append(update(policy, plan, old_logprobs, ref, method))
    mean = {name: sum(s[name] for s in stats) / len(stats) for name in stats[0]}
    return mean | {name: v for name, v in stats[0].items() if name.startswith("sync/")}


def plan_updates(policy: DeepSpeedPolicy, items: Sequence[TrainItem]) -> list[UpdatePlan]:
    """Deal items to the step's updates and cut them into micro-batches (C).

    All ranks get the same number of micro-batches; those with fewer add empty ones.
    """
    train = policy.config.train
    cuts = [
        micro_batches(
            items[first :: train.updates_per_step],
            max_tokens=train.micro_batch_tokens,
            layout=policy.layout,
        )
        for first in range(train.updates_per_step)
    ]
    mine = torch.tensor(
        [
            [len(c), sum(b.num_trained_tokens for b in c), sum(b.num_responses for b in c)]
            for c in cuts
        ],
        device=policy.device,
    )
    ranks = [torch.empty_like(mine) for _ in range(policy.world_size)]
    dist.all_gather(ranks, mine)
    counts = torch.stack(ranks)
    plans = []
    for index, cut in enumerate(cuts):
        most = max(1, int(counts[:, index, 0].max()))
        cut += [empty_micro_batch(policy.layout)] * (most - len(cut))
        tokens, responses = counts[:, index, 1:].sum(0).tolist()
        plans.append(UpdatePlan(batches=cut, num_tokens=tokens, num_responses=responses))
    return plans


def logprobs(
    model: LogprobModel, batches: Sequence[MicroBatch], temperature: float
) -> list[torch.Tensor]:
    """[T] log-probs of each micro-batch's response tokens, without gradients (C).

    Args:
        model: the policy or the reference.
        batches: as many on every rank.
        temperature: of sampling.
    """
    with torch.no_grad():
        return [model.score(batch, temperature)[0] for batch in batches]


def by_response(
    batches: Sequence[MicroBatch], values: Sequence[torch.Tensor]
) -> dict[tuple[int, int], np.ndarray]:
    """Per-token values of micro-batches as (item, response) -> [T_i] array."""
    result: dict[tuple[int, int], np.ndarray] = {}
    for batch, flat in zip(batches, values, strict=True):
        parts = np.split(flat.float().cpu().numpy(), batch.lengths.cumsum(0)[:-1].cpu().numpy())
        result.update(zip(batch.response_ids, parts, strict=False))
    return result


def update(
    policy: DeepSpeedPolicy,
    plan: UpdatePlan,
    old_logprobs: Sequence[torch.Tensor],
    ref_logprobs: Sequence[torch.Tensor] | None,
    method: Method[Any] | None = None,
) -> dict[str, float]:
    """One optimizer step (C).

    Args:
        policy: the model to train, with its config.
        plan: micro-batches and global counts.
        old_logprobs: [T] a micro-batch, of the policy that sampled.
        ref_logprobs: [T] a micro-batch, of the reference; None without a KL term.
        method: whose terms are added to the loss; None where there are none.

    Returns:
        Metrics, the same on all ranks.

    Raises:
        TrainingError: a loss or gradient is not finite, on any rank; raised on all, before the
            step is applied.
    """
    config = policy.config
    rate = policy.learning_rate
    shares = (*_SHARES, *(f"loss/{name}" for name in (method.loss_names if method else ())))
    sums = torch.zeros(len(shares) + len(_SUMS), device=policy.device)
    worst_diff = torch.zeros(1, device=policy.device)
    if plan.num_tokens == 0:
        # Nobody has data. An optimizer step would move the weights by momentum and decay alone.
        policy.skip_step()
        names = (*shares, *_SUMS, "sync/logprob_diff_max", "optim/grad_norm")
        return dict.fromkeys(names, 0.0) | {"optim/lr": rate, "optim/skipped": 1.0}
    denominators = Denominators(
        num_tokens=plan.num_tokens,
        num_sequences=plan.num_responses,
        max_length=config.rollout.max_new_tokens,
    )
    for index, batch in enumerate(plan.batches):
        logp, entropy = policy.score(batch, config.rollout.temperature, with_entropy=True)
        batch = batch.to(policy.device)
        tokens = Tokens(
            logprobs=logp,
            entropy=entropy,
            old_logprobs=old_logprobs[index],
            ref_logprobs=None if ref_logprobs is None else ref_logprobs[index],
            advantages=batch.advantages,
            mask=batch.mask,
            response=sequence_index(batch.lengths),
        )
        terms = {} if method is None else _terms(method, tokens)
        loss, parts, diff = _loss(tokens, terms, batch.sampler_logprobs, config.loss, denominators)
        policy.backward(loss, is_last=index == len(plan.batches) - 1)
        sums += parts
        worst_diff = torch.maximum(worst_diff, diff)
    dist.all_reduce(sums)
    dist.all_reduce(worst_diff, op=dist.ReduceOp.MAX)
    values = sums.tolist()
    if not np.isfinite(values[0]):
        raise TrainingError(
            f"the loss of optimizer step {policy.steps_done} is {values[0]}; the weights are as "
            "before the step. Look at the step's rewards and log-probs, or lower "
            "train.optimizer.lr"
        )
    grad_norm = policy.step()
    means = {k: v / plan.num_tokens for k, v in zip(_SUMS, values[len(shares) :], strict=True)}
    return {
        **dict(zip(shares, values, strict=False)),
        **means,
        "sync/logprob_diff_max": float(worst_diff),
        "optim/grad_norm": grad_norm,
        "optim/lr": rate,
        "optim/skipped": 0.0,
    }


def _terms(method: Method[Any], tokens: Tokens) -> dict[str, torch.Tensor]:
    """The method's own token losses, in the order in which it names them."""
    terms = method.loss_terms(tokens)
    if terms.keys() != set(method.loss_names):
        raise TrainingError(
            f"{type(method).__name__}.loss_terms returned {sorted(terms)}; should be "
            f"{sorted(method.loss_names)}, as its `declares` has them (loss/<name>)"
        )
    return {name: terms[name] for name in method.loss_names}


def _loss(
    tokens: Tokens,
    terms: Mapping[str, torch.Tensor],
    sampler: torch.Tensor,
    settings: LossConfig,
    denominators: Denominators,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A micro-batch's share of the loss, its metrics (_SHARES, terms, _SUMS), worst diff.

    Args:
        tokens: of the micro-batch.
        terms: [T] each, the method's own.
        sampler: [T] log-probs that the engine reported.
        settings: the surrogate, KL and entropy.
        denominators: of the global batch.
    """
    logp, mask = tokens.logprobs, tokens.mask
    ratio = importance_ratio(logp, tokens.old_logprobs, mask)
    surrogate = clipped_surrogate(
        ratio,
        tokens.advantages,
        clip_low=settings.clip_low,
        clip_high=settings.clip_high,
        dual_clip=settings.dual_clip,
    )
    policy_losses = surrogate.losses
    if settings.old_logprobs == "recompute" and settings.importance_cap is not None:
        policy_losses = policy_losses * truncated_importance_weights(
            tokens.old_logprobs, sampler, mask, max_weight=settings.importance_cap
        )
    if tokens.ref_logprobs is None:
        kl = torch.zeros_like(logp)
    else:
        kl = kl_estimate(logp, tokens.ref_logprobs, mask, estimator=settings.kl_estimator)
    losses = policy_losses + settings.kl_coef * kl
    if settings.entropy_coef > 0.0:
        losses = losses - settings.entropy_coef * tokens.entropy
    for term in terms.values():
        losses = losses + term

    def share(values: torch.Tensor) -> torch.Tensor:
        return reduce_losses(
            values, mask, tokens.response, reduction=settings.reduction, denominators=denominators
        )

    loss = share(losses)
    with torch.no_grad():
        metrics = torch.stack(
            [
                loss,
                share(policy_losses),
                share(kl),
                share(tokens.entropy),
                *(share(term) for term in terms.values()),
                (surrogate.is_clipped & mask).sum(),
                (surrogate.is_dual_clipped & mask).sum(),
                (ratio * mask).sum(),
                logprob_mismatch(logp, sampler, mask).sum_abs_diff,
            ]
        )
        diff = ((logp - sampler).abs() * mask).nan_to_num(nan=0.0)
        worst = diff.max() if diff.numel() else diff.sum()
    return loss, metrics.detach(), worst[None]
