"""Laws of the maths that hold for every input."""

from __future__ import annotations

import math

import numpy as np
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mupo_ray.core.advantage import dr_grpo, grpo, mupo, rloo
from mupo_ray.core.grouping import inertia, partition
from mupo_ray.core.loss import (
    Denominators,
    clipped_surrogate,
    importance_ratio,
    kl_estimate,
    reduce_losses,
    sequence_index,
    sequence_ratio,
)

# Multiples of 1/64 add and subtract exactly, so a law can be held to rounding error.
reward = st.integers(-128, 128).map(lambda i: i / 64)
rewards = st.lists(reward, min_size=2, max_size=16)
weighting = st.sampled_from(["paper", "release"])
balance = st.sampled_from([0.0, 0.5, 1.0, 2.0])
fast = settings(max_examples=60, deadline=None)


@st.composite
def grouped(draw):
    values = draw(rewards)
    ids = draw(st.lists(st.integers(0, 3), min_size=len(values), max_size=len(values)))
    return np.array(values), np.array(ids)


@fast
@given(rewards, weighting, balance, st.sampled_from([0.0, 0.3]))
def test_one_group_is_grpo(values, kind, power, floor):
    one = mupo(values, [5] * len(values), weighting=kind, balance=power, min_std=floor)
    plain = grpo(values, min_std=floor)
    assert one.values.tolist() == plain.values.tolist()
    assert (one.num_floored, one.num_constant) == (plain.num_floored, plain.num_constant)


@fast
@given(grouped(), weighting, balance, st.randoms())
def test_order_of_responses_does_not_matter(data, kind, power, random):
    values, ids = data
    order = list(range(len(values)))
    random.shuffle(order)
    for estimate in (
        lambda r, g: mupo(r, g, weighting=kind, balance=power),
        lambda r, g: grpo(r),
        lambda r, g: dr_grpo(r),
        lambda r, g: rloo(r),
    ):
        straight = estimate(values, ids).values[order]
        np.testing.assert_allclose(estimate(values[order], ids[order]).values, straight, atol=1e-12)


@fast
@given(grouped(), st.integers(-64, 64), weighting)
def test_adding_a_constant_changes_nothing(data, constant, kind):
    values, ids = data
    for estimate in (lambda r: mupo(r, ids, weighting=kind), grpo, dr_grpo, rloo):
        np.testing.assert_allclose(
            estimate(values + constant).values, estimate(values).values, atol=1e-9
        )


@fast
@given(st.floats(-1e6, 1e6), st.integers(1, 16), weighting)
def test_equal_rewards_give_zeros(value, n, kind):
    values = [value] * n
    ids = [i % 3 for i in range(n)]
    for result in (mupo(values, ids, weighting=kind), grpo(values), dr_grpo(values), rloo(values)):
        assert result.values.tolist() == [0.0] * n


@fast
@given(grouped())
def test_advantages_sum_to_zero_in_each_group_before_weighting(data):
    values, ids = data
    plain = mupo(values, ids, balance=0.0).values
    for group in np.unique(ids):
        assert abs(plain[ids == group].sum()) < 1e-9
    for result in (grpo(values), dr_grpo(values), rloo(values)):
        assert abs(result.values.sum()) < 1e-9


@fast
@given(grouped(), st.randoms())
def test_unscored_responses_do_not_move_the_others(data, random):
    values, ids = data
    missing = np.array([random.random() < 0.3 for _ in values])
    assume(not missing.all())
    holed = np.where(missing, np.nan, values)
    for kind in ("paper", "release"):
        result = mupo(holed, ids, weighting=kind).values
        assert (result[missing] == 0.0).all()
        np.testing.assert_allclose(
            result[~missing], mupo(values[~missing], ids[~missing], weighting=kind).values
        )


@st.composite
def ragged(draw):
    lengths = draw(st.lists(st.integers(1, 6), min_size=1, max_size=6))
    seed = draw(st.integers(0, 10_000))
    gen = torch.Generator().manual_seed(seed)
    total = sum(lengths)
    mask = torch.rand(total, generator=gen) < 0.7
    policy, old, ref = (-3 * torch.rand(3, total, generator=gen, dtype=torch.float64)).unbind()
    advantages = torch.randn(len(lengths), generator=gen, dtype=torch.float64)
    return lengths, mask, policy, old, ref, advantages


def loss_of(lengths, mask, policy, old, ref, advantages, kind, whole, sequence_level=False):
    index = sequence_index(torch.tensor(lengths))
    if sequence_level:
        ratio = sequence_ratio(policy, old, mask, index)
    else:
        ratio = importance_ratio(policy, old, mask)
    surrogate = clipped_surrogate(
        ratio, advantages[index], clip_low=0.2, clip_high=0.28, dual_clip=3.0
    )
    losses = surrogate.losses + 0.01 * kl_estimate(policy, ref, mask, estimator="k3")
    return reduce_losses(losses, mask, index, reduction=kind, denominators=whole)


reductions = st.sampled_from(["token_mean", "sequence_mean", "constant_length"])


def counts(lengths, mask):
    parts = mask.split(lengths)
    return Denominators(
        num_tokens=max(int(mask.sum()), 1),
        num_sequences=max(sum(bool(p.any()) for p in parts), 1),
        max_length=8,
    )


@fast
@given(ragged(), reductions, st.booleans())
def test_one_micro_batch_equals_many(data, kind, sequence_level):
    lengths, mask, policy, old, ref, advantages = data
    whole = counts(lengths, mask)
    together = policy.clone().requires_grad_()
    loss = loss_of(
        lengths, mask, together, old, ref, advantages, kind, whole, sequence_level=sequence_level
    )
    loss.backward()

    apart = policy.clone().requires_grad_()
    total, start = 0.0, 0
    for i, length in enumerate(lengths):
        piece = slice(start, start + length)
        part = loss_of(
            [length],
            mask[piece],
            apart[piece],
            old[piece],
            ref[piece],
            advantages[i : i + 1],
            kind,
            whole,
            sequence_level=sequence_level,
        )
        part.backward()
        total += part.item()
        start += length
    assert math.isclose(total, loss.item(), rel_tol=1e-12, abs_tol=1e-12)
    torch.testing.assert_close(apart.grad, together.grad, rtol=1e-12, atol=1e-14)


@fast
@given(ragged(), reductions, st.booleans(), st.sampled_from([math.nan, -math.inf, math.inf]))
def test_masked_tokens_get_no_gradient_whatever_they_hold(data, kind, sequence_level, poison):
    lengths, mask, policy, old, ref, advantages = data
    whole = counts(lengths, mask)
    results = []
    for value in (None, poison):
        tensors = [x.clone() for x in (policy, old, ref)]
        if value is not None:
            for x in tensors:
                x[~mask] = value
        tensors[0].requires_grad_()
        loss = loss_of(
            lengths, mask, *tensors, advantages, kind, whole, sequence_level=sequence_level
        )
        loss.backward()
        assert (tensors[0].grad[~mask] == 0.0).all()
        results.append((loss.item(), tensors[0].grad[mask].tolist()))
    assert results[0] == results[1]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 4), st.integers(1, 3), st.integers(0, 4))
def test_partition_is_feasible_stable_and_locally_optimal(seed, k, m, spare):
    rng = np.random.default_rng(seed)
    n = k * m + spare
    rows = rng.standard_normal((n, 3))
    ids = partition(rows, k, m)
    sizes = np.bincount(ids, minlength=k)
    assert sizes.min() >= m and len(sizes) == k
    assert (np.diff(sizes) <= 0).all()
    order = rng.permutation(n)
    assert partition(rows[order], k, m).tolist() == ids[order].tolist()
    best = inertia(rows, ids)
    for i in range(n):
        for j in range(i):
            swapped = ids.copy()
            swapped[[i, j]] = ids[[j, i]]
            assert best <= inertia(rows, swapped) + 1e-9
        if sizes[ids[i]] > m:
            for to in range(k):
                moved = ids.copy()
                moved[i] = to
                assert best <= inertia(rows, moved) + 1e-9
