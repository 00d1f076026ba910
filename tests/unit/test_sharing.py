"""Packed and padded micro-batches against one stock forward pass a response, gradients included."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import build_qwen3, random_item
from transformers import AutoModelForImageTextToText

from mupo_ray.demo.tiny_model import build_tiny_model
from mupo_ray.train.batch import MicroBatch, Sharing, TrainItem, micro_batches
from mupo_ray.train.policy import row_layout
from mupo_ray.train.prefix import layout_of, set_attention
from mupo_ray.train.scorer import Scorer
from mupo_ray.train.update import by_response

LOGPROB_LIMIT = 1e-5
GRADIENT_LIMIT = 1e-4
"""Of each parameter, relative to its norm."""
Key = tuple[int, int]
Scores = tuple[dict[Key, torch.Tensor], dict[str, torch.Tensor]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    build_tiny_model(folder / "tied", 0)
    build_tiny_model(folder / "untied", 0, tie=False)
    build_qwen3(folder / "qwen3")
    return folder


@pytest.fixture(scope="module")
def naive(models: Path) -> Callable[[str], Scores]:
    """Log-probs and gradients of stock forward passes, computed once a model."""
    known: dict[str, Scores] = {}

    def scores(name: str) -> Scores:
        if name not in known:
            known[name] = naive_scores(load(models / name))
        return known[name]

    return scores


def load(folder: Path) -> Any:
    return AutoModelForImageTextToText.from_pretrained(folder).train()


def items(config: Any) -> list[TrainItem]:
    """Unlike prompts, numbers and lengths; two images in one prompt, none in another."""
    return [
        random_item(config, 0, [3, 9, 5, 1]),
        random_item(config, 1, [12, 1], sides=(6, 4)),
        random_item(config, 2, [7, 7, 7], sides=()),
        random_item(config, 9, [2]),
    ]


def objective(logprobs: torch.Tensor, key: Key) -> torch.Tensor:
    """Some sum of log-probs that no two tokens enter alike."""
    place = torch.arange(len(logprobs), dtype=torch.float32)
    return (logprobs * torch.cos(1.0 + key[0] + 3.0 * key[1] + place)).sum()


def naive_scores(model: Any) -> Scores:
    found: dict[Key, torch.Tensor] = {}
    for index, item in enumerate(items(model.config)):
        prompt = item.prompt
        images = {}
        if len(prompt.image_grid_thw):
            images = {"pixel_values": prompt.pixel_values, "image_grid_thw": prompt.image_grid_thw}
        for row, completion in enumerate(item.completion_ids):
            ids = torch.from_numpy(completion)
            full = torch.cat([prompt.input_ids, ids])[None]
            types = torch.cat([prompt.mm_token_type_ids, torch.zeros_like(ids)])[None]
            logits = model(
                input_ids=full,
                attention_mask=torch.ones_like(full),
                mm_token_type_ids=types,
                **images,
            ).logits[0, len(prompt.input_ids) - 1 : -1]
            logprobs = logits.log_softmax(-1).gather(1, ids[:, None])[:, 0]
            objective(logprobs, (index, row)).backward()
            found[index, row] = logprobs.detach()
    return found, gradients(model)


def gradients(model: Any) -> dict[str, torch.Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def batched_scores(
    model: Any,
    sharing: Sharing,
    *,
    max_tokens: int = 10_000,
    breakage: Callable[[MicroBatch], MicroBatch] | None = None,
) -> Scores:
    set_attention(model, is_packed=sharing is Sharing.PACKED)
    layout = replace(row_layout(model), sharing=sharing)
    scorer = Scorer(model)
    batches = micro_batches(items(model.config), max_tokens=max_tokens, layout=layout)
    scores = []
    for batch in batches:
        broken = batch if breakage is None else breakage(batch)
        logprobs, _ = scorer(broken, 1.0, False)
        parts = torch.split(logprobs, batch.lengths.tolist())
        pairs = zip(parts, batch.response_ids, strict=True)
        torch.stack([objective(part, key) for part, key in pairs]).sum().backward()
        scores.append(logprobs.detach())
    rows = by_response(batches, scores)
    return {key: torch.from_numpy(row) for key, row in rows.items()}, gradients(model)


def differences(mine: Scores, other: Scores) -> tuple[float, float]:
    """Largest log-prob difference, and largest relative one of any parameter's gradient."""
    assert mine[0].keys() == other[0].keys()
    assert mine[1].keys() == other[1].keys()
    return (
        max(float((mine[0][key] - other[0][key]).abs().max()) for key in other[0]),
        max(
            float((mine[1][name] - want).norm() / want.norm().clamp_min(1e-6))
            for name, want in other[1].items()
        ),
    )


@pytest.mark.parametrize("name", ["tied", "untied", "qwen3"])
@pytest.mark.parametrize("sharing", list(Sharing))
@pytest.mark.parametrize("max_tokens", [10_000, 40])
def test_every_form_equals_one_forward_a_response(
    models: Path, naive: Callable[[str], Scores], name: str, sharing: Sharing, max_tokens: int
) -> None:
    mine = batched_scores(load(models / name), sharing, max_tokens=max_tokens)
    logprob, gradient = differences(mine, naive(name))
    assert logprob <= LOGPROB_LIMIT
    assert gradient <= GRADIENT_LIMIT


@pytest.mark.parametrize("name", ["tied", "qwen3"])
def test_packed_under_gradient_checkpointing(
    models: Path, naive: Callable[[str], Scores], name: str
) -> None:
    model = load(models / name)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    logprob, gradient = differences(batched_scores(model, Sharing.PACKED), naive(name))
    assert logprob <= LOGPROB_LIMIT
    assert gradient <= GRADIENT_LIMIT


def responses_that_see_each_other(batch: MicroBatch) -> MicroBatch:
    assert batch.prefix_layout is not None
    cohorts = [(c.prefix, [sum(c.lengths)]) for c in batch.prefix_layout.cohorts]
    return replace(batch, prefix_layout=layout_of(cohorts))


def positions_off_by_one(batch: MicroBatch) -> MicroBatch:
    assert batch.prefix_layout is not None
    positions = batch.position_ids.clone()
    for cohort in batch.prefix_layout.cohorts:
        start = cohort.start + cohort.prefix
        positions[:, :, start : start + sum(cohort.lengths)] += 1
    return replace(batch, position_ids=positions)


def first_tokens_predicted_from_themselves(batch: MicroBatch) -> MicroBatch:
    firsts = batch.lengths.cumsum(0) - batch.lengths
    places = batch.predict_from.clone()
    assert batch.prefix_layout is not None
    starts = [
        c.start + c.prefix + sum(c.lengths[:i])
        for c in batch.prefix_layout.cohorts
        for i in range(len(c.lengths))
    ]
    places[firsts] = torch.tensor(starts)
    return replace(batch, predict_from=places)


@pytest.mark.parametrize(
    "breakage",
    [
        responses_that_see_each_other,
        positions_off_by_one,
        first_tokens_predicted_from_themselves,
    ],
)
def test_a_wrong_row_is_told_from_a_right_one(
    models: Path,
    naive: Callable[[str], Scores],
    breakage: Callable[[MicroBatch], MicroBatch],
) -> None:
    broken = batched_scores(load(models / "tied"), Sharing.PACKED, breakage=breakage)
    logprob, gradient = differences(broken, naive("tied"))
    # Far above the limits, so that the limits tell right from wrong.
    assert logprob > 50 * LOGPROB_LIMIT
    assert gradient > 50 * GRADIENT_LIMIT
