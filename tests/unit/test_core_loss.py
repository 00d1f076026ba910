"""Token losses against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from mupo_ray.core.loss import (
    Denominators,
    clipped_surrogate,
    entropy,
    importance_ratio,
    kl_estimate,
    logprob_mismatch,
    next_token_logprobs,
    reduce_losses,
    sequence_index,
    sequence_ratio,
    token_logprobs,
    truncated_importance_weights,
)

F64 = torch.float64
YES = torch.ones(4, dtype=torch.bool)


def t(values, dtype=F64, grad=False):
    return torch.tensor(values, dtype=dtype, requires_grad=grad)


def close(actual, expected, atol=1e-6):
    torch.testing.assert_close(actual.detach().to(F64), t(expected), rtol=0, atol=atol)


def test_gspo_golden():
    policy = t([0.02, -0.01, 0.05, -0.03], grad=True)
    ratio = sequence_ratio(policy, torch.zeros(4, dtype=F64), YES, torch.zeros(4, dtype=int))
    close(ratio, [1.0075282] * 4, atol=5e-8)
    surrogate = clipped_surrogate(ratio, t([1.0] * 4), clip_low=3e-4, clip_high=4e-4)
    close(surrogate.losses, [-1.0004] * 4, atol=1e-12)
    assert surrogate.is_clipped.all()
    # Token form: each token's gradient is the sequence's ratio.
    (grad,) = torch.autograd.grad(ratio.sum(), policy)
    close(grad, [1.0075282] * 4, atol=5e-8)
    close(importance_ratio(policy, t([0.0] * 4), YES), [1.020201, 0.99005, 1.051271, 0.970446])


def test_gspo_ratio_is_of_the_own_sequence_and_skips_masked_tokens():
    policy = t([0.1, 0.3, math.nan, -0.2, 0.4])
    old = t([0.0, 0.0, 0.0, 0.0, math.nan])
    mask = torch.tensor([True, True, False, True, True])
    ratio = sequence_ratio(policy, old, mask, torch.tensor([0, 0, 0, 1, 1]))
    close(ratio[mask], [math.exp(0.2)] * 2 + [math.exp(-0.1)] * 2)


def test_c08_clip_signs_and_dual_clip():
    advantage = t([1.0, 1, 1, 1, -1, -1, -1, -1])
    ratio = t([0.5, 1, 1.25, 10, 0.5, 1, 1.25, 10])
    plain = clipped_surrogate(ratio, advantage, clip_low=0.2, clip_high=0.28)
    close(plain.losses, [-0.5, -1.0, -1.25, -1.28, 0.8, 1.0, 1.25, 10.0], atol=1e-12)
    assert plain.is_clipped.tolist() == [False] * 3 + [True, True] + [False] * 3
    assert not plain.is_dual_clipped.any()
    dual = clipped_surrogate(ratio, advantage, clip_low=0.2, clip_high=0.28, dual_clip=3.0)
    close(dual.losses, [-0.5, -1.0, -1.25, -1.28, 0.8, 1.0, 1.25, 3.0], atol=1e-12)
    assert dual.is_dual_clipped.tolist() == [False] * 7 + [True]
    with pytest.raises(ValueError, match="dual_clip must be above 1"):
        clipped_surrogate(ratio, advantage, clip_low=0.2, clip_high=0.28, dual_clip=1.0)
    with pytest.raises(ValueError, match="clip_low"):
        clipped_surrogate(ratio, advantage, clip_low=1.2, clip_high=0.28)


def test_clip_takes_the_gradient_away_only_where_it_says_so():
    policy = t([0.5, 0.5, -0.5, -0.5, 3.0, 0.1], grad=True)
    advantage = t([1.0, -1, 1, -1, -1, 2])
    mask = torch.ones(6, dtype=torch.bool)
    ratio = importance_ratio(policy, t([0.0] * 6), mask)
    result = clipped_surrogate(ratio, advantage, clip_low=0.2, clip_high=0.28, dual_clip=3.0)
    (grad,) = torch.autograd.grad(result.losses.sum(), policy)
    gone = result.is_clipped | result.is_dual_clipped
    assert gone.tolist() == [True, False, False, True, True, False]
    assert (grad[gone] == 0).all()
    expected = (-advantage * ratio).detach()[~gone]
    torch.testing.assert_close(grad[~gone], expected)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_c07_k3_normal_and_extreme(dtype):
    diff = torch.tensor([-5.0, -1.0, 0.0, 0.5, 5.0, 100.0, -100.0], dtype=dtype)
    policy = torch.zeros(7, dtype=dtype, requires_grad=True)
    mask = torch.ones(7, dtype=torch.bool)
    k3 = kl_estimate(policy, diff, mask, estimator="k3")
    (grad,) = torch.autograd.grad(k3.sum(), policy)
    expected = torch.tensor([4.006738, 0.3678794, 0.0, 0.1487213, 142.4132], dtype=dtype)
    torch.testing.assert_close(k3[:5].detach(), expected, rtol=1e-5, atol=1e-7)
    assert k3[6].item() == pytest.approx(99.0, rel=1e-6)
    assert torch.isfinite(k3).all() and torch.isfinite(grad).all() and (k3 >= 0).all()
    torch.testing.assert_close(grad[:5], 1 - diff[:5].exp(), rtol=1e-4, atol=1e-6)
    assert grad[6].item() == pytest.approx(1.0)
    # Never a push away from a token that the reference likes.
    assert grad[5].item() <= 0.0


def test_k3_of_tiny_differences_is_not_rounding_noise():
    diff = torch.tensor([1e-4, -1e-4, 3e-6], dtype=torch.float32)
    k3 = kl_estimate(torch.zeros(3), diff, YES[:3], estimator="k3")
    assert (k3 >= 0).all()
    torch.testing.assert_close(k3[:2], 0.5 * diff[:2] ** 2, rtol=2e-3, atol=0)


def test_k1_and_k2_by_hand():
    policy, ref = t([-0.2, -0.6]), t([-0.1, -2.0])
    close(kl_estimate(policy, ref, YES[:2], estimator="k1"), [-0.1, 1.4], atol=1e-12)
    close(kl_estimate(policy, ref, YES[:2], estimator="k2"), [0.005, 0.98], atol=1e-12)
    # k3 of the same pairs, from the published table of PAPO.
    close(kl_estimate(policy, ref, YES[:2], estimator="k3"), [0.005171, 0.646597])
    with pytest.raises(ValueError, match="k9"):
        kl_estimate(policy, ref, YES[:2], estimator="k9")


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_estimators_average_to_the_true_kl(estimator):
    p, q = t([0.5, 0.3, 0.2]).log(), t([0.2, 0.5, 0.3]).log()
    estimate = kl_estimate(p, q, YES[:3], estimator=estimator)
    torch.testing.assert_close((p.exp() * estimate).sum(), (p.exp() * (p - q)).sum())


def test_c06_token_mean_over_micro_batches():
    losses = [t([1.0, 1.0], grad=True), t([0.1] * 8, grad=True)]
    whole = Denominators(num_tokens=10, num_sequences=2, max_length=8)

    def reduced(reduction):
        return sum(
            reduce_losses(
                part,
                torch.ones(len(part), dtype=torch.bool),
                torch.zeros(len(part), dtype=int),
                reduction=reduction,
                denominators=whole,
            )
            for part in losses
        )

    total = reduced("token_mean")
    assert total.item() == pytest.approx(0.28)
    grads = torch.autograd.grad(total, losses)
    close(torch.cat(grads), [0.1] * 10, atol=1e-12)
    assert reduced("sequence_mean").item() == pytest.approx(0.55)
    # Sums 2.0 and 0.8 over 2 sequences of at most 8 tokens: mean 1.4, divided by 8.
    assert reduced("constant_length").item() == pytest.approx(1.4 / 8)


def test_reduction_without_tokens_is_a_zero_with_a_gradient():
    empty = torch.zeros(0, requires_grad=True)
    whole = Denominators(num_tokens=10, num_sequences=2, max_length=8)
    for reduction in ("token_mean", "sequence_mean", "constant_length"):
        loss = reduce_losses(
            empty,
            torch.zeros(0, dtype=torch.bool),
            torch.zeros(0, dtype=int),
            reduction=reduction,
            denominators=whole,
        )
        loss.backward()
        assert loss.item() == 0.0
    with pytest.raises(ValueError, match="at least 1"):
        Denominators(num_tokens=0, num_sequences=2, max_length=8)


def test_sequence_mean_counts_only_unmasked_tokens():
    loss = reduce_losses(
        t([1.0, 3.0, math.inf, 5.0, math.nan]),
        torch.tensor([True, True, False, True, False]),
        sequence_index(torch.tensor([3, 1, 1])),
        reduction="sequence_mean",
        denominators=Denominators(num_tokens=3, num_sequences=2, max_length=8),
    )
    assert loss.item() == pytest.approx((2.0 + 5.0) / 2)


def test_c09_temperature_comes_before_the_softmax():
    logits, sampled = t([[2.0, 1.0, 0.0, -1.0]]), torch.tensor([1])
    assert token_logprobs(logits, sampled, temperature=0.6).item() == pytest.approx(-1.874727)
    assert token_logprobs(logits, sampled).item() == pytest.approx(-1.44019, abs=1e-6)
    with pytest.raises(ValueError, match="temperature"):
        token_logprobs(logits, sampled, temperature=0.0)


def test_c22_token_is_scored_by_the_logits_before_it():
    logits = t([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 3.0]])
    logprobs = next_token_logprobs(logits, torch.tensor([0, 2, 1]))
    # The second is -log(1 + e**2 / ... ) of token 1 under [0, 2, 0].
    close(logprobs[0], math.log(1 / (math.e + 2)), atol=1e-6)
    close(logprobs, [-1.551445, -0.2395448], atol=1e-6)


def test_c19_missing_sampler_logprob_gives_ratio_one():
    sampler = torch.tensor([-0.5, math.nan, -0.2])
    train = torch.tensor([-0.4, -1.0, -0.3], requires_grad=True)
    mask = torch.ones(3, dtype=torch.bool)
    expected = [1.105171, 1.0, 0.9048374]
    close(truncated_importance_weights(train, sampler, mask, max_weight=2.0), expected)
    ratio = importance_ratio(train, sampler, mask)
    close(ratio, expected)
    result = clipped_surrogate(ratio, torch.ones(3), clip_low=0.2, clip_high=0.28)
    (grad,) = torch.autograd.grad(result.losses.sum(), train)
    assert torch.isfinite(grad).all()
    # The missing one is treated as on-policy.
    assert grad[1].item() == -1.0
    mismatch = logprob_mismatch(train, sampler, mask)
    assert mismatch.num_tokens.item() == 2
    assert mismatch.sum_abs_diff.item() == pytest.approx(0.2, abs=1e-6)


def test_truncated_importance_weights_by_hand():
    old, sampler = t([-1.0, -1.0, -3.0, -50.0], grad=True), t([-1.0, -3.0, -1.0, -1.0])
    weights = truncated_importance_weights(old, sampler, YES, max_weight=2.0)
    close(weights, [1.0, 2.0, math.exp(-2), math.exp(-20)])
    assert not weights.requires_grad


def test_entropy_by_hand():
    logits = t([[0.0, 0.0, 0.0, 0.0], [0.0, 0.0, -math.inf, -math.inf]], grad=True)
    value = entropy(logits)
    close(value, [math.log(4), math.log(2)])
    (grad,) = torch.autograd.grad(value.sum(), logits)
    assert torch.isfinite(grad).all()
    # p = (e/(1+e), 1/(1+e)) has entropy log(1 + e) - e/(1 + e).
    close(entropy(t([[2.0, 0.0]]), temperature=2.0), [math.log(1 + math.e) - math.e / (1 + math.e)])


def test_log_ratio_is_held_in_range():
    policy = torch.tensor([0.0, -200.0], requires_grad=True)
    ratio = importance_ratio(policy, torch.tensor([-200.0, 0.0]), torch.ones(2, dtype=torch.bool))
    assert torch.isfinite(ratio).all()
    assert ratio[0].item() == pytest.approx(math.exp(20), rel=1e-5)
