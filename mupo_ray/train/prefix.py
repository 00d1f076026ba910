"""Attention over a packed row, in which a prompt stands once and all its responses follow it.

    row        [ prompt 1 | r11 | r12 | ... | prompt 2 | r21 | ... ]      one row, no padding
    segments     prompt 1: sees itself          r12: sees prompt 1, then itself
                 each causal; a segment's keys are the path from its prompt's first token to its end

Every other part of a decoder treats tokens one by one, so this function and the positions are all
that sharing a prompt needs. It is registered with transformers' `AttentionInterface` under `NAME`;
the row's layout reaches it as the keyword `prefix_layout` of the model's forward. No mask of
the whole row is built.

Exact: the numbers are those of one row a response, up to the order of additions. The layout of
keys (`kv_index`, `cu_q`, `cu_k`) is that of TRL 1.16's `tree_attention`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own usage
from transformers import AttentionInterface

NAME = "prefix_shared"


def set_attention(model: Any, *, is_packed: bool) -> None:
    """Give a model's decoder the attention that packed rows need, or stock attention."""
    kind = NAME if is_packed else "sdpa"
    model.set_attn_implementation({"": kind, "text_config": kind, "vision_config": "sdpa"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Cohort:
    """One prompt of P tokens at `start`, and its N responses of up to T tokens each after it."""

    start: int
    prefix: int
    """P"""
    lengths: tuple[int, ...]
    """[N] tokens of each response."""
    places: torch.Tensor | None
    """[N * T] place in the row of each token of a padded response; None where N = 0 and where
    all have T tokens, so that the row itself is the matrix."""
    kept: torch.Tensor | None
    """[sum of lengths] which of the N * T are tokens; None as for `places`."""
    mask: torch.Tensor | None
    """[T, P + T] which keys a response's token sees; None where N = 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixLayout:
    """Where everything stands in a packed row of L tokens, with S segments and K keys in all."""

    cohorts: tuple[Cohort, ...]
    kv_index: torch.Tensor
    """[K] int64 place in the row of each key, segment after segment."""
    cu_q: torch.Tensor
    """[S + 1] int32 ends of the segments in the row."""
    cu_k: torch.Tensor
    """[S + 1] int32 ends of the segments' keys in `kv_index`."""
    max_q: int
    max_k: int

    def to(self, device: torch.device) -> PrefixLayout:
        """The same on another device."""
        cohorts = tuple(replace(c, **_moved(c, device)) for c in self.cohorts)
        return replace(self, **_moved(self, device), cohorts=cohorts)


def layout_of(cohorts: Sequence[tuple[int, Sequence[int]]]) -> PrefixLayout:
    """Layout of cohorts that stand one after the other.

    Args:
        cohorts: (tokens of the prompt, tokens of each response); a prompt may have no response.
    """
    spans: list[Cohort] = []
    keys: list[torch.Tensor] = []
    num_q: list[int] = []
    start = 0
    for prefix, lengths in cohorts:
        spans.append(_cohort(start, prefix, tuple(lengths)))
        path = torch.arange(start, start + prefix)
        keys.append(path)
        num_q.append(prefix)
        start += prefix
        for length in lengths:
            keys += [path, torch.arange(start, start + length)]
            num_q.append(length)
            start += length
    num_k = [k for p, ls in cohorts for k in (p, *(p + length for length in ls))]
    return PrefixLayout(
        cohorts=tuple(spans),
        kv_index=torch.cat(keys),
        cu_q=_ends(num_q),
        cu_k=_ends(num_k),
        max_q=max(num_q),
        max_k=max(num_k),
    )


def prefix_shared_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    prefix_layout: PrefixLayout,
    scaling: float | None = None,
    sliding_window: int | None = None,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention function of a transformers decoder, for a packed row.

    Args:
        module: the attention layer.
        query: [1, heads, L, D]
        key: [1, key heads, L, D]
        value: as `key`.
        attention_mask: None; the layout says who sees whom.
        prefix_layout: of the row.
        scaling: of the products; 1 / sqrt(D) where None.
        sliding_window: tokens of its path that a token sees, itself included; all where None.
        dropout: must be 0.

    Returns:
        [1, L, heads, D], and None in place of weights.

    Raises:
        ValueError: a mask or dropout came in, or query is not one row.
    """
    if attention_mask is not None or dropout or query.shape[0] != 1:
        raise ValueError(
            f"packed rows take no mask and no dropout, got batch {query.shape[0]}, dropout "
            f"{dropout}, mask {None if attention_mask is None else tuple(attention_mask.shape)}"
        )
    if sliding_window is not None and sliding_window >= prefix_layout.max_k:
        sliding_window = None
    attend = _varlen if query.is_cuda and query.dtype is not torch.float32 else _sdpa
    return attend(query, key, value, prefix_layout, scaling, sliding_window), None


def _sdpa(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    layout: PrefixLayout,
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    """Two calls a cohort: the prompt, causal; and its responses as a batch behind its keys.

    Rows are cut and joined token by token, as [tokens, heads, D]: that is how they lie in memory.
    """
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    out: list[torch.Tensor] = []
    for cohort in layout.cohorts:
        at = slice(cohort.start, cohort.start + cohort.prefix)
        near = None if window is None else _within(window, cohort.prefix, 0, query.device)
        shared_k, shared_v = (x[at].transpose(0, 1)[None] for x in (k, v))
        prompt = F.scaled_dot_product_attention(
            q[at].transpose(0, 1)[None],
            shared_k,
            shared_v,
            attn_mask=near,
            is_causal=near is None,
            scale=scaling,
            enable_gqa=True,
        )
        out.append(prompt[0].transpose(0, 1))
        if not cohort.lengths:
            continue
        own_q, own_k, own_v = (_responses(x, cohort) for x in (q, k, v))
        count, _, longest, _ = own_q.shape
        mask = cohort.mask
        if window is not None:
            mask = _within(window, longest, cohort.prefix, query.device)
        own = F.scaled_dot_product_attention(
            own_q,
            torch.cat([shared_k.expand(count, -1, -1, -1), own_k], dim=2),
            torch.cat([shared_v.expand(count, -1, -1, -1), own_v], dim=2),
            attn_mask=mask,
            scale=scaling,
            enable_gqa=True,
        )
        flat = own.transpose(1, 2).flatten(0, 1)
        out.append(flat if cohort.kept is None else flat.index_select(0, cohort.kept))
    return torch.cat(out)[None]


def _responses(x: torch.Tensor, cohort: Cohort) -> torch.Tensor:
    """Queries, keys or values of a cohort's responses: [L, heads, D] -> [N, heads, T, D]."""
    if cohort.places is None:
        start = cohort.start + cohort.prefix
        rows = x[start : start + sum(cohort.lengths)]
    else:
        rows = x.index_select(0, cohort.places)
    _, heads, width = x.shape
    return rows.reshape(len(cohort.lengths), -1, heads, width).transpose(1, 2)


def _varlen(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    layout: PrefixLayout,
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    """One flash-attention call over all segments; causal from the lower right corner."""
    from torch.nn.attention.varlen import varlen_attn

    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    out: Any = varlen_attn(
        q,
        k.index_select(0, layout.kv_index),
        v.index_select(0, layout.kv_index),
        layout.cu_q,
        layout.cu_k,
        layout.max_q,
        layout.max_k,
        scale=scaling,
        window_size=(-1 if window is None else window - 1, 0),
        enable_gqa=True,
    )
    result: torch.Tensor = out[None]
    return result


def _cohort(start: int, prefix: int, lengths: tuple[int, ...]) -> Cohort:
    if not lengths:
        return Cohort(start=start, prefix=prefix, lengths=(), places=None, kept=None, mask=None)
    longest = max(lengths)
    places = kept = None
    if min(lengths) != longest:
        count = torch.tensor(lengths)
        firsts = start + prefix + count.cumsum(0) - count
        inside = torch.arange(longest) < count[:, None]
        # Padding repeats the prompt's first token: it is seen by itself alone and never read.
        places = torch.where(inside, firsts[:, None] + torch.arange(longest), start).flatten()
        kept = inside.flatten().nonzero()[:, 0]
    return Cohort(
        start=start,
        prefix=prefix,
        lengths=lengths,
        places=places,
        kept=kept,
        mask=_within(prefix + longest, longest, prefix, torch.device("cpu")),
    )


def _within(window: int, count: int, before: int, device: torch.device) -> torch.Tensor:
    """[count, before + count]: key j of token i is neither later nor `window` or more back."""
    back = before + torch.arange(count, device=device)[:, None]
    back = back - torch.arange(before + count, device=device)
    return (back >= 0) & (back < window)


def _ends(lengths: Sequence[int]) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


def _moved(record: Cohort | PrefixLayout, device: torch.device) -> dict[str, Any]:
    """The record's tensors on a device, by field."""
    return {
        f.name: value.to(device, non_blocking=True)
        for f in fields(record)
        if isinstance(value := getattr(record, f.name), torch.Tensor)
    }


AttentionInterface.register(NAME, prefix_shared_attention)
