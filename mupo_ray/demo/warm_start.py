"""A short supervised start that makes the tiny model broad and shallow.

Three stages, plain torch:

    see      the vision tower alone: each image token must name its cell and its number through the
             word embeddings, so that pictures arrive in the language model's own vocabulary
    reason   the language model on careful texts of all four strategies; the tower is frozen and its
             features are computed once
    broaden  the same with half of the texts hasty

Every strategy is executed faithfully whether or not it is valid in the puzzle, so the result knows
every way to reason and not which one to trust: that is left to reinforcement learning. On hinted
puzzles it leans towards what the hint recommends, too little to profit much from it.

Letters: M = puzzles, B = puzzles of a step.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from transformers import Qwen2_5_VLForConditionalGeneration
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import apply_rotary_pos_emb_vision

from mupo_ray.demo.puzzle_text import choose_strategies, opening_words, sample_response
from mupo_ray.demo.puzzles import (
    CELL_PIXELS,
    CELLS,
    Puzzle,
    Strategy,
    add_hint,
    render,
    sample_puzzle,
)
from mupo_ray.demo.text_packing import IMAGE_TOKENS, TextPacker
from mupo_ray.demo.tiny_model import PIXEL_MEAN, PIXEL_STD, build_model, vocabulary

logger = logging.getLogger(__name__)

_PATCH = CELL_PIXELS // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStartConfig:
    """Sizes and rates of the three stages."""

    seed: int = 0
    tie: bool = True
    """Whether the output layer shares the word embeddings."""
    num_puzzles: int = 4096
    """Puzzles and pictures drawn once and visited again and again."""
    see_steps: int = 80
    see_batch: int = 64
    see_lr: float = 3e-3
    reason_steps: int = 200
    reason_lr: float = 2.5e-3
    broaden_steps: int = 200
    broaden_lr: float = 2e-3
    batch: int = 16
    """Puzzles a step of the language stages; each carries four texts."""
    careful_frac: float = 0.5
    """Share of careful texts in the last stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageReport:
    """What one stage cost and reached."""

    name: str
    steps: int
    cpu_s: float
    loss: float
    """Mean loss of the last tenth of its steps."""


def warm_start(
    config: WarmStartConfig,
    *,
    exclude: Collection[tuple[int, ...]] = (),
    hinted: bool = False,
) -> tuple[Qwen2_5_VLForConditionalGeneration, list[StageReport]]:
    """Train a model from random weights.

    Args:
        config: sizes and rates; equal arguments give equal weights on the same machine.
        exclude: boards that must not be trained on, such as those of an evaluation set.
        hinted: whether the puzzles carry hints.

    Returns:
        The float32 model in evaluation mode, and one report a stage.
    """
    model = build_model(config.seed, tie=config.tie)
    rng = np.random.default_rng([config.seed, 1])
    puzzles, patches = draw_pictures(config.num_puzzles, frozenset(exclude), rng, hinted=hinted)

    def see_loss() -> torch.Tensor:
        rows = rng.integers(len(puzzles), size=config.see_batch)
        return seeing_loss(model, patches[rows], [puzzles[i] for i in rows])

    tower = [*model.model.visual.parameters(), model.get_input_embeddings().weight]
    reports = [_run_stage("see", tower, see_loss, config.see_steps, config.see_lr)]
    with torch.no_grad():
        features = torch.cat([image_features(model, chunk) for chunk in torch.split(patches, 512)])
    packer = TextPacker(model)

    def text_loss(careful_frac: float) -> torch.Tensor:
        rows = rng.integers(len(puzzles), size=config.batch)
        texts = [
            [
                sample_response(puzzles[i], strategy, rng, careful_frac=careful_frac)
                for strategy in choose_strategies(puzzles[i], rng)
            ]
            for i in rows
        ]
        return packer.loss(features[rows], texts)

    words = [*model.model.language_model.parameters(), *model.lm_head.parameters()]
    words = list({id(p): p for p in words}.values())
    for name, steps, lr, careful in (
        ("reason", config.reason_steps, config.reason_lr, 1.0),
        ("broaden", config.broaden_steps, config.broaden_lr, config.careful_frac),
    ):
        reports.append(_run_stage(name, words, partial(text_loss, careful), steps, lr))
    return model.eval(), reports


def draw_pictures(
    num: int,
    exclude: frozenset[tuple[int, ...]],
    rng: np.random.Generator,
    *,
    hinted: bool = False,
) -> tuple[list[Puzzle], torch.Tensor]:
    """Draw puzzles and pictures.

    Returns:
        M puzzles and [M, 36, 588] uint8 patches; the four patches of a cell adjoin, as Qwen's image
        processor orders them.
    """
    puzzles: list[Puzzle] = []
    while len(puzzles) < num:
        puzzle = sample_puzzle(rng)
        if puzzle.board not in exclude:
            puzzles.append(puzzle)
    if hinted:
        (hint_rng,) = rng.spawn(1)
        puzzles = [add_hint(puzzle, hint_rng) for puzzle in puzzles]
    pixels = torch.from_numpy(np.stack([render(puzzle, rng) for puzzle in puzzles]))
    # M, cell row, patch row, pixel row, cell column, patch column, pixel column, channel
    cut = pixels.view(num, 3, 2, _PATCH, 3, 2, _PATCH, 3).permute(0, 1, 4, 2, 5, 7, 3, 6)
    return puzzles, cut.reshape(num, 36, 3 * _PATCH * _PATCH)


def image_features(
    model: Qwen2_5_VLForConditionalGeneration, patches: torch.Tensor
) -> torch.Tensor:
    """The vision tower on equal pictures, a quarter of the cost of its own forward.

    The stock forward attends picture by picture and convolves both copies of a still frame; here
    pictures are a batch and the copies' kernels are added first.

    Args:
        model: its tower has one block, with attention over the whole picture.
        patches: [B, 36, 588] uint8.

    Returns:
        [B, 9, hidden] features, equal to the stock forward's up to rounding.
    """
    visual = model.model.visual
    (block,) = visual.blocks
    pixels = (patches.float() / 255 - PIXEL_MEAN) / PIXEL_STD
    kernel = visual.patch_embed.proj.weight.sum(dim=2).flatten(1)
    x = functional.linear(pixels, kernel)
    batch, num, width = x.shape
    heads = block.attn.num_heads
    q, k, v = block.attn.qkv(block.norm1(x)).view(batch, num, 3, heads, -1).unbind(2)
    cos, sin = visual.rotary_pos_emb(x, _patch_positions())
    q, k = apply_rotary_pos_emb_vision(q, k, cos, sin)
    attended = functional.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    )
    x = x + block.attn.proj(attended.transpose(1, 2).reshape(batch, num, width))
    x = x + block.mlp(block.norm2(x))
    features: torch.Tensor = visual.merger(x).view(batch, IMAGE_TOKENS, -1)
    return features


def seeing_loss(
    model: Qwen2_5_VLForConditionalGeneration, patches: torch.Tensor, puzzles: list[Puzzle]
) -> torch.Tensor:
    """Cross entropy of each visible image token's number, plus that of its cell's name.

    Where there is a hint, its token must also name the white quadrants' strategies, each by the
    words that open its texts.
    """
    ids = {token: i for i, token in enumerate(vocabulary())}
    embeddings = model.get_input_embeddings().weight
    tokens = image_features(model, patches)
    features = tokens[:, : len(CELLS)].flatten(0, 1)
    numbers = torch.tensor([number - 1 for puzzle in puzzles for number in puzzle.board])
    cells = torch.arange(len(CELLS)).repeat(len(puzzles))
    number_words = embeddings[[ids[str(n)] for n in range(1, 10)]]
    cell_words = embeddings[[ids[cell] for cell in CELLS]]
    loss = functional.cross_entropy(features @ number_words.T, numbers)
    loss = loss + functional.cross_entropy(features @ cell_words.T, cells)
    hints = [puzzle.hint for puzzle in puzzles if puzzle.hint is not None]
    if not hints:
        return loss
    openings = [(strategy, word) for strategy in Strategy for word in opening_words(strategy)]
    white = torch.tensor([[float(strategy in hint) for strategy, _ in openings] for hint in hints])
    words = embeddings[[ids[word] for _, word in openings]]
    return loss + functional.binary_cross_entropy_with_logits(tokens[:, -1] @ words.T, white)


def _patch_positions() -> torch.Tensor:
    """[36, 2] row and column of each patch, the four of a cell adjoining."""
    rows = torch.arange(6)[:, None].expand(6, 6)
    both = torch.stack([rows, rows.T])
    return both.reshape(2, 3, 2, 3, 2).permute(0, 1, 3, 2, 4).reshape(2, 36).T


def _run_stage(
    name: str,
    parameters: Iterable[nn.Parameter],
    loss_of_batch: Callable[[], torch.Tensor],
    steps: int,
    lr: float,
) -> StageReport:
    """AdamW with a short warm-up and a linear decay over the last half."""
    parameters = list(parameters)
    start = time.process_time()
    optimizer = torch.optim.AdamW(parameters, lr=lr, betas=(0.9, 0.98), weight_decay=0.01)
    losses: list[float] = []
    for step in range(steps):
        rate = lr * min((step + 1) / 20, 1.0, 2 * (steps - step) / steps)
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = loss_of_batch()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        losses.append(float(loss.detach()))
        if step % 25 == 0:
            logger.info("%s step %d loss %.3f", name, step, losses[-1])
    tail = losses[-max(1, steps // 10) :]
    report = StageReport(
        name=name, steps=steps, cpu_s=time.process_time() - start, loss=sum(tail) / len(tail)
    )
    logger.info("%s: %d steps, %.1f CPU-seconds, loss %.3f", name, steps, report.cpu_s, report.loss)
    return report
