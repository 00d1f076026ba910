"""The update's loss: given tokens are in nothing, a method's terms are added and reduced alike."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mupo_ray.core.loss import Denominators
from mupo_ray.settings.sections import LossConfig
from mupo_ray.train.update import _loss
from mupo_ray.types import Tokens

LOGPROBS = [-0.5, -1.0, -0.2, -2.0, -0.7]
OLD = [-0.6, -0.9, -0.2, -1.0, -0.7]
REF = [-0.4, -1.5, -0.3, -1.2, -0.9]
ADVANTAGES = [1.0, 1.0, -0.5, -0.5, -0.5]
OWNER = [0, 0, 1, 1, 1]
REDUCTIONS = ["token_mean", "sequence_mean", "constant_length"]


def columns(keep: list[int], *, given: tuple[int, ...] = ()) -> tuple[Tokens, torch.Tensor]:
    """Tokens of the two responses above; given ones have log-probs that would spoil any sum."""

    def column(values: list[float], spoilt: float) -> torch.Tensor:
        return torch.tensor([spoilt if i in given else values[i] for i in keep])

    logprobs = column(LOGPROBS, -torch.inf).requires_grad_()
    old = column(OLD, torch.nan)
    tokens = Tokens(
        logprobs=logprobs,
        entropy=column([0.1 * (i + 1) for i in range(5)], torch.nan),
        old_logprobs=old,
        ref_logprobs=column(REF, torch.nan),
        advantages=torch.tensor([ADVANTAGES[i] for i in keep]),
        mask=torch.tensor([i not in given for i in keep]),
        response=torch.tensor([OWNER[i] for i in keep]),
    )
    return tokens, old


def loss_of(
    tokens: Tokens, sampler: torch.Tensor, reduction: Any, terms: dict[str, torch.Tensor]
) -> tuple[float, list[float], torch.Tensor]:
    settings = LossConfig(kl_coef=0.1, entropy_coef=0.01, reduction=reduction)
    counts = Denominators(num_tokens=int(tokens.mask.sum()), num_sequences=2, max_length=8)
    loss, metrics, _ = _loss(tokens, terms, sampler, settings, counts)
    (gradient,) = torch.autograd.grad(loss, tokens.logprobs)
    return loss.item(), metrics.tolist(), gradient


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_given_tokens_are_as_if_they_were_not_there(reduction: str) -> None:
    with_given = columns([0, 1, 2, 3, 4], given=(1, 3))
    without = columns([0, 2, 4])
    loss, metrics, gradient = loss_of(*with_given, reduction, {})
    expected, expected_metrics, expected_gradient = loss_of(*without, reduction, {})
    assert loss == pytest.approx(expected)
    assert metrics == pytest.approx(expected_metrics)
    assert gradient[[0, 2, 4]].tolist() == pytest.approx(expected_gradient.tolist())
    assert gradient[[1, 3]].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_an_advantage_of_zero_leaves_the_denominators(reduction: str) -> None:
    tokens, sampler = columns([0, 1, 2, 3, 4])
    tokens.advantages[3] = 0.0
    _, metrics, _ = loss_of(tokens, sampler, reduction, {})
    # The policy's share by hand: r_t = exp(logp - old), held below 1.28 where A > 0.
    ratio = [
        min(torch.tensor(a - b).exp().item(), 1.28) for a, b in zip(LOGPROBS, OLD, strict=True)
    ]
    shares = [-a * r for a, r in zip([1.0, 1.0, -0.5, 0.0, -0.5], ratio, strict=True)]
    by_hand = {
        "token_mean": sum(shares) / 5,
        "sequence_mean": (sum(shares[:2]) / 2 + sum(shares[2:]) / 3) / 2,
        "constant_length": sum(shares) / (2 * 8),
    }
    assert metrics[1] == pytest.approx(by_hand[reduction])


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_terms_of_zeros_change_nothing_and_others_are_reduced_alike(reduction: str) -> None:
    tokens, sampler = columns([0, 1, 2, 3, 4])
    plain, plain_metrics, plain_gradient = loss_of(tokens, sampler, reduction, {})
    zero = torch.zeros(5)
    loss, metrics, gradient = loss_of(tokens, sampler, reduction, {"none": zero})
    assert (loss, metrics[:4], metrics[5:]) == (plain, plain_metrics[:4], plain_metrics[4:])
    assert torch.equal(gradient, plain_gradient)

    # The entropy's own share, as a term.
    loss, metrics, _ = loss_of(tokens, sampler, reduction, {"calm": 0.5 * tokens.entropy})
    assert metrics[4] == pytest.approx(0.5 * plain_metrics[3])
    assert loss == pytest.approx(plain + 0.5 * plain_metrics[3])
