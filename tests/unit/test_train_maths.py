"""The log-prob head against autograd on whole logits, and the learning rate by hand."""

from __future__ import annotations

import pytest
import torch

from mupo_ray.settings.sections import OptimizerConfig
from mupo_ray.train import scorer
from mupo_ray.train.policy import learning_rate_at


@pytest.mark.parametrize("chunk_logits", [11 * 3, 2**26], ids=["chunks of 3", "one chunk"])
@pytest.mark.parametrize("with_entropy", [True, False], ids=["entropy", "plain"])
def test_head_equals_autograd(
    monkeypatch: pytest.MonkeyPatch, chunk_logits: int, with_entropy: bool
) -> None:
    monkeypatch.setattr(scorer, "_MAX_LOGITS", chunk_logits)
    torch.manual_seed(0)
    head = torch.nn.Linear(4, 11, bias=False)
    hidden = torch.randn(8, 4, requires_grad=True)
    targets = torch.randint(11, (8,))
    up, up_entropy = torch.randn(8), torch.randn(8)

    logp = torch.log_softmax(head(hidden) / 0.7, -1)
    want = logp[torch.arange(8), targets]
    want_entropy = -(logp.exp() * logp).sum(-1)
    loss = (want * up).sum() + with_entropy * (want_entropy * up_entropy).sum()
    want_grads = torch.autograd.grad(loss, [hidden, head.weight])

    head.__class__ = scorer.LogprobHead
    got, entropy = head(hidden, targets, 0.7, with_entropy)
    torch.testing.assert_close(got, want, atol=1e-6, rtol=1e-6)
    loss = (got * up).sum()
    if with_entropy:
        torch.testing.assert_close(entropy, want_entropy, atol=1e-6, rtol=1e-6)
        loss = loss + (entropy * up_entropy).sum()
    else:
        assert entropy.numel() == 0
    grads = torch.autograd.grad(loss, [hidden, head.weight])
    torch.testing.assert_close(grads, want_grads, atol=2e-6, rtol=1e-5)


def test_head_without_tokens_has_a_zero_gradient() -> None:
    head = scorer.LogprobHead(4, 11, bias=False)
    hidden = torch.zeros(0, 4, requires_grad=True)
    logp, _ = head(hidden, torch.zeros(0, dtype=torch.int64), 1.0, True)
    logp.sum().backward()
    assert head.weight.grad is not None
    assert float(head.weight.grad.abs().sum()) == 0.0


def test_head_with_bias_is_refused() -> None:
    model = torch.nn.Module()
    model.lm_head = torch.nn.Linear(4, 11)
    with pytest.raises(ValueError, match="without bias"):
        scorer.Scorer(model)


@pytest.mark.parametrize(
    ("schedule", "want"),
    [
        # Two steps of warm-up, then a course of eight.
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [0.5, 1.0, 1.0, 0.5, 0.125]),
        ("cosine", [0.5, 1.0, 1.0, 0.5, 0.5 * (1 - 0.9238795325)]),
    ],
)
def test_learning_rate(schedule: str, want: list[float]) -> None:
    settings = OptimizerConfig.model_validate({"lr": 0.1, "warmup_steps": 2, "schedule": schedule})
    got = [learning_rate_at(step, settings, 10) for step in (0, 1, 2, 6, 9)]
    assert got == pytest.approx([0.1 * w for w in want])
