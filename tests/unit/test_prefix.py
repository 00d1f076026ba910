"""Attention over packed rows, against attention written out segment by segment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from mupo_ray.train import prefix
from mupo_ray.train.prefix import PrefixLayout, layout_of, prefix_shared_attention

COHORTS = [(3, [2, 4, 1]), (1, []), (5, [3, 3]), (2, [1])]
LENGTH = 25
"""Tokens of the row that COHORTS makes."""
HEADS, KEY_HEADS, WIDTH = 4, 2, 8


def paths(cohorts: Sequence[tuple[int, Sequence[int]]]) -> list[tuple[range, list[int]]]:
    """(places of a segment's queries, places of its keys) of every segment of the row."""
    found: list[tuple[range, list[int]]] = []
    start = 0
    for num_prompt, lengths in cohorts:
        prompt = range(start, start + num_prompt)
        found.append((prompt, list(prompt)))
        start += num_prompt
        for length in lengths:
            own = range(start, start + length)
            found.append((own, [*prompt, *own]))
            start += length
    return found


def written_out(q: Any, k: Any, v: Any, window: int | None = None) -> torch.Tensor:
    """Softmax over the path of every single token, one after the other, in float64."""
    out = torch.zeros_like(q)
    for places, path in paths(COHORTS):
        before = len(path) - len(places)
        for i, place in enumerate(places):
            seen = path[: before + i + 1]
            seen = seen if window is None else seen[-window:]
            for head in range(HEADS):
                kv_head = head // (HEADS // KEY_HEADS)
                scores = k[0, kv_head, seen] @ q[0, head, place] / math.sqrt(WIDTH)
                out[0, head, place] = scores.softmax(0) @ v[0, kv_head, seen]
    return out.transpose(1, 2)


def inputs() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(1, heads, LENGTH, WIDTH, generator=generator, dtype=torch.float64)
        for heads in (HEADS, KEY_HEADS, KEY_HEADS)
    ]


def attend(layout: PrefixLayout, tensors: Sequence[torch.Tensor], **options: Any) -> torch.Tensor:
    out, weights = prefix_shared_attention(
        torch.nn.Identity(), *tensors, None, prefix_layout=layout, **options
    )
    assert weights is None
    return out


def flash_varlen(
    q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, window: tuple[int, int], scale: float | None
) -> torch.Tensor:
    """What a varlen flash kernel computes: causal from the lower right corner of each segment."""
    out = []
    for i in range(len(cu_q) - 1):
        at_q, at_k = slice(cu_q[i], cu_q[i + 1]), slice(cu_k[i], cu_k[i + 1])
        num_q, num_k = cu_q[i + 1] - cu_q[i], cu_k[i + 1] - cu_k[i]
        back = torch.arange(num_k - num_q, num_k)[:, None] - torch.arange(num_k)
        seen = back >= 0
        if window[0] >= 0:
            seen &= back <= window[0]
        keys, values = (x[at_k].repeat_interleave(HEADS // KEY_HEADS, 1) for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q[at_q], keys) * (scale or WIDTH**-0.5)
        p = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        out.append(torch.einsum("hqk,khd->qhd", p, values))
    return torch.cat(out)


def test_layout_of_a_small_row() -> None:
    layout = layout_of([(2, [1, 2]), (1, [])])
    # p0 p1 | a | b0 b1 | q0
    assert layout.kv_index.tolist() == [0, 1, 0, 1, 2, 0, 1, 3, 4, 5]
    assert layout.cu_q.tolist() == [0, 2, 3, 5, 6]
    assert layout.cu_k.tolist() == [0, 2, 5, 9, 10]
    assert (layout.max_q, layout.max_k) == (2, 4)
    first, last = layout.cohorts
    assert first.places is not None
    assert first.places.tolist() == [2, 0, 3, 4]
    assert first.kept is not None
    assert first.kept.tolist() == [0, 2, 3]
    assert first.mask is not None
    assert first.mask.tolist() == [[True, True, True, False], [True, True, True, True]]
    assert (last.start, last.lengths) == (5, ())


@pytest.mark.parametrize("window", [None, 1, 3, 100])
def test_values_and_gradients_are_those_written_out(window: int | None) -> None:
    mine, plain = ([x.requires_grad_() for x in inputs()] for _ in range(2))
    out = attend(layout_of(COHORTS), mine, sliding_window=window)
    want = written_out(*plain, window=window)
    assert out.shape == (1, LENGTH, HEADS, WIDTH)
    assert torch.allclose(out, want, atol=1e-12)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).double()
    (out * weights).sum().backward()
    (want * weights).sum().backward()
    for x, y in zip(mine, plain, strict=True):
        assert torch.allclose(x.grad, y.grad, atol=1e-12)  # type: ignore[arg-type]


def test_a_response_is_blind_to_the_others_and_to_other_prompts() -> None:
    tensors = inputs()
    layout = layout_of(COHORTS)
    before = attend(layout, tensors)
    changed = [x.clone() for x in tensors]
    for x in changed:
        x[:, :, 5:9] += 1.0  # The second response of the first prompt.
    after = attend(layout, changed)
    same = (before == after).flatten(2).all(-1)[0]
    assert same.tolist() == [place not in range(5, 9) for place in range(LENGTH)]


def test_the_varlen_call_means_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def kernel(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, *_: Any, **options: Any) -> Any:
        assert options["enable_gqa"]
        return flash_varlen(q, k, v, cu_q, cu_k, options["window_size"], options["scale"])

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", kernel)
    tensors, layout = inputs(), layout_of(COHORTS)
    for window in (None, 3):
        out = prefix._varlen(*tensors, layout, None, window)
        assert torch.allclose(out, written_out(*tensors, window=window), atol=1e-12)


def test_trl_attends_the_same_over_this_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    packing = pytest.importorskip(
        "trl.experimental.async_grpo.packing", reason="needs trl, which the bench extra installs"
    )

    class Kernel:
        @staticmethod
        def flash_attn_varlen_func(
            q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, *_: Any, **options: Any
        ) -> torch.Tensor:
            assert options["causal"]
            scale, window = options["softmax_scale"], options["window_size"]
            return flash_varlen(q, k, v, cu_q, cu_k, window, scale)

    monkeypatch.setattr(packing, "_flash_attn", lambda: Kernel)
    tensors, layout = inputs(), layout_of(COHORTS)
    out, _ = packing.tree_attention(
        torch.nn.Identity(),
        *tensors,
        None,
        tree_kv_index=layout.kv_index,
        tree_cu_seqlens_q=layout.cu_q,
        tree_cu_seqlens_k=layout.cu_k,
        tree_max_seqlen_q=layout.max_q,
        tree_max_seqlen_k=layout.max_k,
    )
    assert torch.allclose(out, attend(layout, tensors), atol=1e-12)


@pytest.mark.parametrize(
    "broken", [{"attention_mask": torch.ones(1)}, {"dropout": 0.1}, {"query": torch.ones(2)}]
)
def test_what_it_cannot_honour_is_refused(broken: dict[str, Any]) -> None:
    query, key, value = inputs()
    options = {"query": query, "key": key, "value": value, "attention_mask": None} | broken
    with pytest.raises(ValueError, match="no mask and no dropout"):
        prefix_shared_attention(torch.nn.Identity(), prefix_layout=layout_of(COHORTS), **options)
