"""From cohorts to micro-batches: the one place where records become columns.

Shapes use the letters B = rows, L = length of a row, P = tokens of a prompt, R = responses,
T = response tokens of a whole micro-batch (flat, one response after the other), I = images.

Three forms hold the same responses, and a model gives them the same log-probs:

    packed       [ prompt 1 | r11 | r12 | prompt 2 | r21 ]   one row; see train/prefix.py
    vision_only  [ prompt 1 | r11 | padding ]                 a row a response, images once a prompt
                 [ prompt 1 | r12           ]
                 [ prompt 2 | r21 | padding ]
    off          the same rows, images once a row, as other trainers do

Padding stands on the right, where causal attention lets no response token see it, so no attention
mask is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from itertools import groupby
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch

from mupo_ray.train.prefix import PrefixLayout, layout_of

if TYPE_CHECKING:
    from mupo_ray.data.encode import EncodedPrompt
    from mupo_ray.types import ScoredCohort


class Sharing(StrEnum):
    """What the responses of a prompt share in a forward pass."""

    PACKED = "packed"
    """The prompt and its images."""
    VISION_ONLY = "vision_only"
    """The images."""
    OFF = "off"
    """Nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainItem:
    """What the update needs of one cohort. Every tuple has length N."""

    prompt: EncodedPrompt
    completion_ids: tuple[np.ndarray, ...]
    """[T_i] int64 each, T_i >= 1."""
    sampler_logprobs: tuple[np.ndarray, ...]
    """[T_i] float32 each."""
    advantages: tuple[np.ndarray, ...]
    """[T_i] each."""
    is_given: tuple[np.ndarray | None, ...]
    """[T_i] bool each, true on tokens that the policy did not choose; None: it chose all."""

    @classmethod
    def from_scored(cls, scored: ScoredCohort, prompt: EncodedPrompt) -> Self:
        """Bring a scored cohort and its encoded prompt together; tokens share the advantage."""
        responses = scored.cohort.responses
        return cls(
            prompt=prompt,
            completion_ids=tuple(r.completion_ids for r in responses),
            sampler_logprobs=tuple(r.sampler_logprobs for r in responses),
            advantages=tuple(
                np.full(r.num_tokens, advantage)
                for r, advantage in zip(responses, scored.advantages, strict=True)
            ),
            is_given=tuple(r.is_given for r in responses),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How rows are built for a model."""

    sharing: Sharing
    pad_token_id: int
    positions: Callable[[EncodedPrompt], torch.Tensor]
    """Rotary positions [3, P] of a prompt."""
    filler: EncodedPrompt
    """A prompt with one tiny image. It makes a row without responses wherever a micro-batch would
    have no image, since the vision tower's collectives need every rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Columns of one forward pass."""

    input_ids: torch.Tensor
    """[B, L] int64"""
    position_ids: torch.Tensor
    """[3, B, L] int64"""
    pixel_values: torch.Tensor
    """[patches, D] of all images; each once, unless nothing is shared."""
    image_grid_thw: torch.Tensor
    """[I, 3] int64"""
    image_of_slot: tuple[int, ...]
    """Image behind each run of placeholder tokens, row by row."""
    predict_from: torch.Tensor
    """[T] int64 place in the flattened [B * L] whose hidden state predicts the token."""
    targets: torch.Tensor
    """[T] int64 response tokens."""
    lengths: torch.Tensor
    """[R] int64 tokens of each response; their sum is T."""
    sampler_logprobs: torch.Tensor
    """[T] float32"""
    advantages: torch.Tensor
    """[T] float32"""
    mask: torch.Tensor
    """[T] bool, false on given tokens: they are in no loss and no count."""
    response_ids: tuple[tuple[int, int], ...]
    """(index of the item, index of the response in it) of each response."""
    prefix_layout: PrefixLayout | None
    """Of the packed row; None where rows are padded."""

    @property
    def num_trained_tokens(self) -> int:
        """Tokens that the policy chose, T at most."""
        return int(self.mask.sum())

    @property
    def num_responses(self) -> int:
        """R."""
        return len(self.response_ids)

    def to(self, device: torch.device) -> MicroBatch:
        """The same columns on another device."""
        if device.type == "cpu":
            return self
        moved: dict[str, Any] = {
            f.name: value.to(device, non_blocking=True)
            for f in fields(self)
            if isinstance(value := getattr(self, f.name), torch.Tensor)
        }
        if self.prefix_layout is not None:
            moved["prefix_layout"] = self.prefix_layout.to(device)
        return replace(self, **moved)


def micro_batches(
    items: Sequence[TrainItem], *, max_tokens: int, layout: Layout
) -> list[MicroBatch]:
    """Cut items into micro-batches of at most `max_tokens` tokens, padding included.

    A cohort stays in one micro-batch where it fits; a larger one is cut into its own, its long
    responses apart from its short ones. A single response whose row is longer than the budget gets
    a micro-batch to itself. Cohorts are taken longest first, so that rows of one micro-batch pad
    little; the result depends on nothing but the items.

    Raises:
        ValueError: a response has no token, or its columns differ in length.
    """
    bins: list[list[tuple[int, int]]] = []
    lengths = [_lengths(index, item) for index, item in enumerate(items)]
    prompts = [len(item.prompt.input_ids) for item in items]
    size = _Size(layout.sharing)
    for index in sorted(range(len(items)), key=lambda i: -prompts[i] - max(lengths[i], default=0)):
        rows = sorted(range(len(lengths[index])), key=lambda row: -lengths[index][row])
        if not rows:
            continue
        counts = [lengths[index][row] for row in rows]
        if bins and size.plus(prompts[index], counts).tokens <= max_tokens:
            bins[-1] += [(index, row) for row in rows]
            size = size.plus(prompts[index], counts)
            continue
        while rows:
            empty = _Size(layout.sharing)
            take = 1
            while (
                take < len(rows)
                and empty.plus(prompts[index], counts[: take + 1]).tokens <= max_tokens
            ):
                take += 1
            bins.append([(index, row) for row in rows[:take]])
            size = empty.plus(prompts[index], counts[:take])
            rows, counts = rows[take:], counts[take:]
    positions: dict[int, torch.Tensor] = {}
    return [_collate(items, sorted(b), layout, positions) for b in bins]


def empty_micro_batch(layout: Layout) -> MicroBatch:
    """A micro-batch without responses: a rank without data passes it through every collective."""
    return _collate([], [], layout, {})


@dataclass(frozen=True, slots=True)
class _Size:
    """How large a micro-batch is so far."""

    sharing: Sharing
    rows: int = 0
    width: int = 0
    packed: int = 0

    @property
    def tokens(self) -> int:
        return self.packed if self.sharing is Sharing.PACKED else self.rows * self.width

    def plus(self, prompt: int, counts: Sequence[int]) -> _Size:
        """With a prompt and its responses, the longest first."""
        return _Size(
            self.sharing,
            rows=self.rows + len(counts),
            width=max(self.width, prompt + counts[0]),
            packed=self.packed + prompt + sum(counts),
        )


def _lengths(index: int, item: TrainItem) -> list[int]:
    """Tokens of every response of a cohort."""
    columns = (item.completion_ids, item.sampler_logprobs, item.advantages, item.is_given)
    if len({len(column) for column in columns}) != 1:
        raise ValueError(
            f"item {index}: {len(item.completion_ids)} completions, {len(item.sampler_logprobs)} "
            f"rows of sampler log-probs, {len(item.advantages)} of advantages, "
            f"{len(item.is_given)} of given tokens; want one of each"
        )
    for row, (ids, logprobs, advantages, marks) in enumerate(zip(*columns, strict=True)):
        if len(ids) == 0 or len({len(ids), len(logprobs), len(advantages)}) != 1:
            raise ValueError(
                f"item {index}, response {row}: {len(ids)} tokens, {len(logprobs)} sampler "
                f"log-probs and {len(advantages)} advantages; want the same number of each, at "
                "least one"
            )
        if marks is not None and (len(marks) != len(ids) or np.all(marks)):
            raise ValueError(
                f"item {index}, response {row}: {int(np.sum(marks))} of {len(marks)} tokens are "
                f"marked as given, of {len(ids)} in all; want a mark for each, and at least one "
                "token that the policy chose"
            )
    return [len(ids) for ids in item.completion_ids]


def _collate(
    items: Sequence[TrainItem],
    response_ids: Sequence[tuple[int, int]],
    layout: Layout,
    positions: dict[int, torch.Tensor],
) -> MicroBatch:
    """Columns for the named responses, in order; `positions` caches a prompt's by item index."""
    cohorts: list[_Responses] = []
    for index, rows in groupby(response_ids, key=lambda pair: pair[0]):
        prompt = items[index].prompt
        if index not in positions:
            positions[index] = layout.positions(prompt)
        ids = [items[index].completion_ids[row] for _, row in rows]
        cohorts.append((prompt, positions[index].numpy(), ids))
    if not any(len(prompt.image_grid_thw) for prompt, _, _ in cohorts):
        cohorts.append((layout.filler, layout.positions(layout.filler).numpy(), []))
    build = _packed if layout.sharing is Sharing.PACKED else _padded
    chosen = [(items[index], row) for index, row in response_ids]
    targets = [item.completion_ids[row] for item, row in chosen]
    return MicroBatch(
        **build(cohorts, layout),
        targets=torch.from_numpy(_concat(targets, np.int64)),
        lengths=torch.tensor([len(ids) for ids in targets], dtype=torch.int64),
        sampler_logprobs=torch.from_numpy(
            _concat([item.sampler_logprobs[row] for item, row in chosen], np.float32)
        ),
        advantages=torch.from_numpy(
            _concat([item.advantages[row] for item, row in chosen], np.float32)
        ),
        mask=torch.from_numpy(_concat([_is_chosen(item, row) for item, row in chosen], np.bool_)),
        response_ids=tuple(response_ids),
    )


def _is_chosen(item: TrainItem, row: int) -> np.ndarray:
    marks = item.is_given[row]
    return np.ones(len(item.completion_ids[row]), np.bool_) if marks is None else ~marks


_Responses = tuple["EncodedPrompt", np.ndarray, list[np.ndarray]]
"""A prompt, its positions [3, P], and the tokens of its responses in a micro-batch."""


def _packed(cohorts: Sequence[_Responses], layout: Layout) -> dict[str, Any]:
    """One row: every prompt once, before its responses."""
    ids: list[np.ndarray] = []
    places: list[np.ndarray] = []
    predict_from: list[np.ndarray] = []
    start = 0
    for prompt, prompt_places, responses in cohorts:
        ids.append(prompt.input_ids.numpy())
        places.append(prompt_places)
        last = start + len(prompt.input_ids) - 1
        start = last + 1
        for response in responses:
            count = len(response)
            ids.append(response)
            places.append(_text_positions(prompt_places, count))
            # Its first token is predicted where the prompt ends, the others by the one before.
            predict_from += [np.array([last]), np.arange(start, start + count - 1)]
            start += count
    return {
        "input_ids": torch.from_numpy(_concat(ids, np.int64))[None],
        "position_ids": torch.from_numpy(np.concatenate(places, axis=1).astype(np.int64))[:, None],
        "pixel_values": torch.cat([prompt.pixel_values for prompt, _, _ in cohorts]),
        "image_grid_thw": torch.cat([prompt.image_grid_thw for prompt, _, _ in cohorts]).long(),
        "image_of_slot": tuple(range(sum(len(p.image_grid_thw) for p, _, _ in cohorts))),
        "predict_from": torch.from_numpy(_concat(predict_from, np.int64)),
        "prefix_layout": layout_of(
            [(len(p.input_ids), [len(r) for r in responses]) for p, _, responses in cohorts]
        ),
    }


def _padded(cohorts: Sequence[_Responses], layout: Layout) -> dict[str, Any]:
    """A row a response, its prompt before it; a filler has a row without a response."""
    rows = [
        (number, response)
        for number, (_, _, responses) in enumerate(cohorts)
        for response in responses or [np.zeros(0, np.int64)]
    ]
    width = max(len(cohorts[number][0].input_ids) + len(ids) for number, ids in rows)
    input_ids = np.full((len(rows), width), layout.pad_token_id, np.int64)
    position_ids = np.zeros((3, len(rows), width), np.int64)
    predict_from: list[np.ndarray] = []
    for i, (number, ids) in enumerate(rows):
        prompt, places, _ = cohorts[number]
        start, stop = len(prompt.input_ids), len(prompt.input_ids) + len(ids)
        input_ids[i, :start] = prompt.input_ids.numpy()
        input_ids[i, start:stop] = ids
        position_ids[:, i, :start] = places
        position_ids[:, i, start:] = _text_positions(places, width - start)
        predict_from.append(i * width + np.arange(start - 1, stop - 1))
    shared = layout.sharing is Sharing.VISION_ONLY
    shown = range(len(cohorts)) if shared else [number for number, _ in rows]
    prompts = [cohorts[number][0] for number in shown]
    return {
        "input_ids": torch.from_numpy(input_ids),
        "position_ids": torch.from_numpy(position_ids),
        "pixel_values": torch.cat([prompt.pixel_values for prompt in prompts]),
        "image_grid_thw": torch.cat([prompt.image_grid_thw for prompt in prompts]).long(),
        "image_of_slot": _slots(cohorts, [number for number, _ in rows], shared=shared),
        "predict_from": torch.from_numpy(_concat(predict_from, np.int64)),
        "prefix_layout": None,
    }


def _slots(cohorts: Sequence[_Responses], rows: Sequence[int], *, shared: bool) -> tuple[int, ...]:
    """Which image stands behind each run of placeholder tokens, row by row."""
    counts = [len(prompt.image_grid_thw) for prompt, _, _ in cohorts]
    if not shared:
        return tuple(range(sum(counts[number] for number in rows)))
    first = np.cumsum([0, *counts])
    return tuple(int(first[number]) + i for number in rows for i in range(counts[number]))


def _text_positions(prompt: np.ndarray, count: int) -> np.ndarray:
    """[3, count]: text goes on by one on all axes from the prompt's largest position."""
    return np.broadcast_to(prompt.max() + 1 + np.arange(count), (3, count))


def _concat(parts: Sequence[np.ndarray], dtype: type[np.generic]) -> np.ndarray:
    """One array of `dtype`, empty where there are no parts."""
    if not parts:
        return np.zeros(0, dtype)
    return np.concatenate([np.asarray(part, dtype) for part in parts])
