"""From cohorts to micro-batches: the one place where records become columns.

Shapes use the letters B = rows, L = padded length of a row, P = tokens of a prompt, R = responses,
T = response tokens of a whole micro-batch (flat, one response after the other), I = images.

A row is prompt, response, padding. Padding stands on the right, where causal attention lets no
response token see it, so no attention mask is needed. A prompt's images appear once however many
rows look at them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch

if TYPE_CHECKING:
    from mupo_ray.data.encode import EncodedPrompt
    from mupo_ray.types import ScoredCohort


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainItem:
    """What the update needs of one cohort. Every tuple has length N."""

    prompt: EncodedPrompt
    completion_ids: tuple[np.ndarray, ...]
    """[T_i] int64 each, T_i >= 1."""
    sampler_logprobs: tuple[np.ndarray, ...]
    """[T_i] float32 each."""
    advantages: np.ndarray
    """[N]"""

    @classmethod
    def from_scored(cls, scored: ScoredCohort, prompt: EncodedPrompt) -> Self:
        """Bring a scored cohort and its encoded prompt together."""
        responses = scored.cohort.responses
        return cls(
            prompt=prompt,
            completion_ids=tuple(r.completion_ids for r in responses),
            sampler_logprobs=tuple(r.sampler_logprobs for r in responses),
            advantages=scored.advantages,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What a model says of how its rows are built."""

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
    """[patches, D] of all images, each once."""
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
    """[R] float32"""
    response_ids: tuple[tuple[int, int], ...]
    """(index of the item, index of the response in it) of each response."""

    @property
    def num_tokens(self) -> int:
        """T."""
        return int(self.targets.shape[0])

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
        return replace(self, **moved)


def micro_batches(
    items: Sequence[TrainItem], *, max_tokens: int, layout: Layout
) -> list[MicroBatch]:
    """Cut items into micro-batches of at most `max_tokens` padded tokens.

    A cohort stays in one micro-batch where it fits; a larger one is cut into its own, its long
    responses apart from its short ones. A single row longer than the budget gets a micro-batch to
    itself. Cohorts are taken longest first, so that rows of one micro-batch pad little; the result
    depends on nothing but the items.

    Raises:
        ValueError: a response has no token, or its columns differ in length.
    """
    bins: list[list[tuple[int, int]]] = []
    open_rows, open_width = 0, 0
    lengths = [_row_lengths(index, item) for index, item in enumerate(items)]
    for index in sorted(range(len(items)), key=lambda i: -max(lengths[i], default=0)):
        rows = sorted(range(len(lengths[index])), key=lambda row: -lengths[index][row])
        if not rows:
            continue
        longest = lengths[index][rows[0]]
        if bins and (open_rows + len(rows)) * max(open_width, longest) <= max_tokens:
            bins[-1] += [(index, row) for row in rows]
            open_rows, open_width = open_rows + len(rows), max(open_width, longest)
            continue
        while rows:
            open_width = lengths[index][rows[0]]
            open_rows = min(len(rows), max(1, max_tokens // open_width))
            bins.append([(index, row) for row in rows[:open_rows]])
            rows = rows[open_rows:]
    positions: dict[int, torch.Tensor] = {}
    return [_collate(items, sorted(b), layout, positions) for b in bins]


def empty_micro_batch(layout: Layout) -> MicroBatch:
    """A micro-batch without responses: a rank without data passes it through every collective."""
    return _collate([], [], layout, {})


def _row_lengths(index: int, item: TrainItem) -> list[int]:
    """Tokens of every row of a cohort, prompt included."""
    counts = {len(item.completion_ids), len(item.sampler_logprobs), len(item.advantages)}
    if len(counts) != 1:
        raise ValueError(
            f"item {index}: {len(item.completion_ids)} completions, {len(item.sampler_logprobs)} "
            f"rows of sampler log-probs, {len(item.advantages)} advantages; want one of each"
        )
    for row, (ids, logprobs) in enumerate(
        zip(item.completion_ids, item.sampler_logprobs, strict=True)
    ):
        if len(ids) == 0 or len(ids) != len(logprobs):
            raise ValueError(
                f"item {index}, response {row}: {len(ids)} tokens and {len(logprobs)} sampler "
                "log-probs; want the same number of both, at least one"
            )
    return [len(item.prompt.input_ids) + len(ids) for ids in item.completion_ids]


def _collate(
    items: Sequence[TrainItem],
    response_ids: Sequence[tuple[int, int]],
    layout: Layout,
    positions: dict[int, torch.Tensor],
) -> MicroBatch:
    """Columns for the named responses; `positions` caches a prompt's positions by item index."""
    rows: list[tuple[EncodedPrompt, torch.Tensor, np.ndarray]] = []
    for index, row in response_ids:
        prompt = items[index].prompt
        if index not in positions:
            positions[index] = layout.positions(prompt)
        rows.append((prompt, positions[index], items[index].completion_ids[row]))
    if not any(len(prompt.image_grid_thw) for prompt, _, _ in rows):
        rows.append((layout.filler, layout.positions(layout.filler), np.zeros(0, np.int64)))

    width = max(len(prompt.input_ids) + len(ids) for prompt, _, ids in rows)
    input_ids = np.full((len(rows), width), layout.pad_token_id, np.int64)
    position_ids = np.zeros((3, len(rows), width), np.int64)
    predict_from: list[np.ndarray] = []
    pixels: list[torch.Tensor] = []
    grids: list[torch.Tensor] = []
    first_image: dict[int, int] = {}
    image_of_slot: list[int] = []
    for i, (prompt, prompt_positions, ids) in enumerate(rows):
        start, stop = len(prompt.input_ids), len(prompt.input_ids) + len(ids)
        input_ids[i, :start] = prompt.input_ids.numpy()
        input_ids[i, start:stop] = ids
        place = prompt_positions.numpy()
        position_ids[:, i, :start] = place
        # Text goes on one step at a time on all three axes after the prompt's largest position.
        position_ids[:, i, start:] = place.max() + 1 + np.arange(width - start)
        predict_from.append(i * width + np.arange(start - 1, stop - 1))
        if id(prompt) not in first_image:
            first_image[id(prompt)] = sum(len(grid) for grid in grids)
            pixels.append(prompt.pixel_values)
            grids.append(prompt.image_grid_thw)
        first = first_image[id(prompt)]
        image_of_slot += range(first, first + len(prompt.image_grid_thw))

    chosen = [(items[index], row) for index, row in response_ids]
    targets = [item.completion_ids[row] for item, row in chosen]
    return MicroBatch(
        input_ids=torch.from_numpy(input_ids),
        position_ids=torch.from_numpy(position_ids),
        pixel_values=torch.cat(pixels),
        image_grid_thw=torch.cat(grids).long(),
        image_of_slot=tuple(image_of_slot),
        predict_from=torch.from_numpy(np.concatenate(predict_from)),
        targets=torch.from_numpy(_concat(targets, np.int64)),
        lengths=torch.tensor([len(ids) for ids in targets], dtype=torch.int64),
        sampler_logprobs=torch.from_numpy(
            _concat([item.sampler_logprobs[row] for item, row in chosen], np.float32)
        ),
        advantages=torch.tensor(
            [float(item.advantages[row]) for item, row in chosen], dtype=torch.float32
        ),
        response_ids=tuple(response_ids),
    )


def _concat(parts: Sequence[np.ndarray], dtype: type[np.generic]) -> np.ndarray:
    """One array of `dtype`, empty where there are no parts."""
    if not parts:
        return np.zeros(0, dtype)
    return np.concatenate([np.asarray(part, dtype) for part in parts])
