"""A prompt as the trainer's model takes it: image tokens expanded, pictures as patches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from mupo_ray.data.render import load_processor
from mupo_ray.types import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedPrompt:
    """What transformers' Qwen-VL models take for one prompt; the engine expands to the same ids.

    Letters: P = tokens with every picture expanded, I = pictures, V = patches of all pictures.
    """

    input_ids: torch.Tensor
    """[P] int64."""
    mm_token_type_ids: torch.Tensor
    """[P] int64, 1 on image tokens, else 0; without it there are no 3-D positions."""
    pixel_values: torch.Tensor
    """[V, channels * temporal * patch * patch] float32; V = 0 where there is no picture."""
    image_grid_thw: torch.Tensor
    """[I, 3] int64 frames, rows and columns of patches of each picture."""


class PromptEncoder:
    """Encodes prompts with a model's own image processor."""

    def __init__(
        self, model_path: str, min_pixels: int | None = None, max_pixels: int | None = None
    ) -> None:
        processor = load_processor(model_path, min_pixels, max_pixels)
        self._images: Any = processor.image_processor
        self._image_token_id: int = processor.image_token_id

    def encode(self, prompt: Prompt) -> EncodedPrompt:
        """Expand each placeholder to its picture's tokens.

        Raises:
            ValueError: the prompt's placeholders and pictures differ in number.
        """
        ids = torch.tensor(prompt.token_ids, dtype=torch.int64)
        is_image = ids == self._image_token_id
        if int(is_image.sum()) != len(prompt.images):
            raise ValueError(
                f"prompt {prompt.prompt_id} has {int(is_image.sum())} image tokens for "
                f"{len(prompt.images)} images, expected one each"
            )
        if prompt.images:
            pixels = self._images(images=[i.pil() for i in prompt.images], return_tensors="pt")
            patches, grid = pixels["pixel_values"], pixels["image_grid_thw"]
        else:
            width = 3 * self._images.temporal_patch_size * self._images.patch_size**2
            patches = torch.zeros((0, width), dtype=torch.float32)
            grid = torch.zeros((0, 3), dtype=torch.int64)
        repeats = torch.ones_like(ids)
        repeats[is_image] = grid.prod(dim=-1) // self._images.merge_size**2
        return EncodedPrompt(
            input_ids=ids.repeat_interleave(repeats),
            mm_token_type_ids=is_image.to(torch.int64).repeat_interleave(repeats),
            pixel_values=patches,
            image_grid_thw=grid,
        )
