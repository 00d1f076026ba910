"""Random models and random training data that several test files share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from mupo_ray.data.encode import EncodedPrompt
from mupo_ray.demo.tiny_model import build_config
from mupo_ray.train.batch import TrainItem


def build_qwen3(folder: Path) -> None:
    """A random Qwen3-VL, which feeds vision features into several layers."""
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    like = build_config()
    text = {
        "vocab_size": like.text_config.vocab_size,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e4,
            "mrope_section": [4, 6, 6],
        },
    }
    vision = {
        "depth": 2,
        "hidden_size": 32,
        "num_heads": 2,
        "intermediate_size": 32,
        "out_hidden_size": 64,
        "patch_size": 14,
        "deepstack_visual_indexes": [0],
        "num_position_embeddings": 64,
    }
    ids = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    config = Qwen3VLConfig(
        text_config=text,
        vision_config=vision,
        tie_word_embeddings=True,
        **{name: getattr(like, name) for name in ids},
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        Qwen3VLForConditionalGeneration(config).save_pretrained(folder)


def random_item(
    model_config: Any, seed: int, lengths: list[int], sides: tuple[int, ...] = (4,)
) -> TrainItem:
    """A prompt with a random image of `side` x `side` patches for each side, random responses."""
    rng = np.random.default_rng(seed)
    image = model_config.image_token_id
    ids = [rng.integers(12, 80, 3 + seed)]
    for side in reversed(sides):
        tokens = [image] * (side // 2) ** 2
        ids = [
            np.array([model_config.vision_start_token_id, *tokens]),
            np.array([model_config.vision_end_token_id]),
            *ids,
        ]
    input_ids = np.concatenate(ids)
    vision = model_config.vision_config
    width = 3 * vision.temporal_patch_size * vision.patch_size**2
    patches = sum(side * side for side in sides)
    grid = torch.tensor([[1, side, side] for side in sides], dtype=torch.int64).reshape(-1, 3)
    return TrainItem(
        prompt=EncodedPrompt(
            input_ids=torch.from_numpy(input_ids),
            mm_token_type_ids=torch.from_numpy((input_ids == image).astype(np.int64)),
            pixel_values=torch.from_numpy(rng.normal(size=(patches, width))).float(),
            image_grid_thw=grid,
        ),
        completion_ids=tuple(rng.integers(12, 80, n) for n in lengths),
        sampler_logprobs=tuple(rng.normal(-4.5, 0.1, n).astype(np.float32) for n in lengths),
        advantages=tuple(
            np.full(n, value)
            for n, value in zip(lengths, rng.normal(size=len(lengths)), strict=True)
        ),
        is_given=(None,) * len(lengths),
    )
