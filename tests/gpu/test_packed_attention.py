"""Packed rows by the variable-length flash kernel, against the same function in float32."""

from __future__ import annotations

import pytest
import torch

from mupo_ray.train.prefix import layout_of, prefix_shared_attention

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

COHORTS = [(70, [33, 129, 1]), (1, []), (256, [64, 64])]
LENGTH = 618
LIMIT = 2e-2


@pytest.mark.parametrize("window", [None, 48])
def test_the_flash_kernel_gives_the_same_values_and_gradients(window: int | None) -> None:
    device = torch.device("cuda")
    generator = torch.Generator().manual_seed(0)
    half = [
        torch.randn(1, heads, LENGTH, 64, generator=generator)
        .to(device, torch.bfloat16)
        .requires_grad_()
        for heads in (8, 2, 2)
    ]
    whole = [x.detach().float().requires_grad_() for x in half]
    weights = torch.randn(1, LENGTH, 8, 64, generator=generator).to(device)
    layout = layout_of(COHORTS).to(device)
    for tensors in (half, whole):
        out, _ = prefix_shared_attention(
            torch.nn.Identity(), *tensors, None, prefix_layout=layout, sliding_window=window
        )
        (out.float() * weights).sum().backward()
    for mine, want in zip(half, whole, strict=True):
        assert mine.grad is not None
        assert want.grad is not None
        error = (mine.grad.float() - want.grad).norm() / want.grad.norm()
        assert float(error) < LIMIT
