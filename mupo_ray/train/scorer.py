"""A vision-language model as a function from a micro-batch to log-probabilities.

Every forward pass, with gradients or without, of the policy or of the reference, goes through
`Scorer`, so that old, new and reference log-probs differ by nothing but weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own usage
from torch import nn

if TYPE_CHECKING:
    from mupo_ray.train.batch import MicroBatch

# Logits held at a time, in elements: 256 MiB of float32, or 441 positions of Qwen's vocabulary.
_MAX_LOGITS = 2**26


class Scorer(nn.Module):
    """Log-probabilities (and entropies) of a micro-batch's response tokens.

    Args:
        model: a Qwen2.5-VL or Qwen3-VL model for conditional generation.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        head = model.lm_head
        if not isinstance(head, nn.Linear) or head.bias is not None:
            raise ValueError(f"lm_head is {head!r}; want a linear layer without bias")
        # The head stays the same module under the same name, so that saved names, tying and
        # DeepSpeed's hooks see nothing; only its call takes targets and returns log-probs.
        head.__class__ = LogprobHead
        self.model: Any = model

    def forward(
        self, batch: MicroBatch, temperature: float, with_entropy: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Score the response tokens.

        Args:
            batch: on the model's device.
            temperature: logits are divided by it.
            with_entropy: also compute entropies.

        Returns:
            ([T] float32 log-probs, [T] float32 entropies, or [0] where not asked for).
        """
        decoder = self.model.model
        vision = decoder.get_image_features(
            batch.pixel_values, batch.image_grid_thw, return_dict=True
        )
        slots = batch.image_of_slot
        vision.pooler_output = tuple(vision.pooler_output[image] for image in slots)
        deepstack = getattr(vision, "deepstack_features", None)
        if deepstack is not None:
            vision.deepstack_features = [
                tuple(level[image] for image in slots) for level in deepstack
            ]
        packed = batch.prefix_layout
        hidden = decoder(
            input_ids=batch.input_ids,
            position_ids=batch.position_ids,
            mm_encoder_outputs={"image": vision},
            use_cache=False,
            **({} if packed is None else {"prefix_layout": packed}),
        ).last_hidden_state
        chosen = hidden.flatten(0, 1).index_select(0, batch.predict_from)
        # One call of the head a micro-batch: ZeRO-3 gathers its weight once on every rank, however
        # many chunks a rank has.
        logprobs, entropy = self.model.lm_head(chosen, batch.targets, temperature, with_entropy)
        return logprobs, entropy


class LogprobHead(nn.Linear):
    """An output layer that returns log-probs of given tokens and never holds all logits."""

    def forward(  # type: ignore[override]
        self, hidden: torch.Tensor, targets: torch.Tensor, temperature: float, with_entropy: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[T, H] hidden states and [T] targets -> ([T] log-probs, [T] or [0] entropies)."""
        chunk = max(1, _MAX_LOGITS // self.out_features)
        result: tuple[torch.Tensor, torch.Tensor] = _TokenLogprobs.apply(  # type: ignore[no-untyped-call]
            hidden, self.weight, targets, temperature, with_entropy, chunk
        )
        return result


class _TokenLogprobs(torch.autograd.Function):
    """log softmax(h W' / temperature)[target] and its entropy, recomputed in backward.

    Logits are taken in the model's dtype, as the sampler does, and everything after in float32.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        targets: torch.Tensor,
        temperature: float,
        with_entropy: bool,
        chunk: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs, normalisers, entropies = [], [], []
        for h, y in zip(torch.split(hidden, chunk), torch.split(targets, chunk), strict=True):
            logits = F.linear(h, weight).float().div_(temperature)
            lse = logits.logsumexp(-1)
            logprobs.append(logits.gather(-1, y[:, None])[:, 0] - lse)
            normalisers.append(lse)
            if with_entropy:
                p = (logits - lse[:, None]).exp_()
                entropies.append(lse - p.mul_(logits).sum(-1))
        ctx.temperature, ctx.chunk = temperature, chunk
        entropy = torch.cat(entropies) if with_entropy else hidden.new_zeros(0, dtype=torch.float32)
        ctx.save_for_backward(hidden, weight, targets, torch.cat(normalisers), entropy)
        return torch.cat(logprobs), entropy

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        hidden, weight, targets, lse, entropy = ctx.saved_tensors
        grad_logprobs, grad_entropy = grads
        need_hidden, need_weight = ctx.needs_input_grad[:2]
        grad_hidden = torch.zeros_like(hidden) if need_hidden else None
        # Chunks add up in float32: bfloat16 would lose the later ones.
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if need_weight else None
        for start in range(0, hidden.shape[0], ctx.chunk):
            at = slice(start, start + ctx.chunk)
            h = hidden[at]
            logp = F.linear(h, weight).float().div_(ctx.temperature).sub_(lse[at, None])
            p = logp.exp()
            # d log p_y / d z_j = [j = y] - p_j ;  d H / d z_j = -p_j (log p_j + H)
            if entropy.numel():
                coef = grad_logprobs[at, None] + grad_entropy[at, None] * (
                    logp.add_(entropy[at, None])
                )
                grad = p.mul_(coef).neg_()
            else:
                grad = p.mul_(grad_logprobs[at, None]).neg_()
            grad.scatter_add_(-1, targets[at, None], grad_logprobs[at, None])
            grad = grad.div_(ctx.temperature).to(h.dtype)
            if grad_hidden is not None:
                torch.mm(grad, weight, out=grad_hidden[at])
            if grad_weight is not None:
                grad_weight += torch.mm(grad.T, h)
        return (
            grad_hidden,
            None if grad_weight is None else grad_weight.to(weight.dtype),
            None,
            None,
            None,
            None,
        )
