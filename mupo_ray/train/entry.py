"""The renderer of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mupo_ray.data.render import PromptRenderer

if TYPE_CHECKING:
    from mupo_ray.config import Config


def make_renderer(config: Config) -> PromptRenderer:
    """The renderer that a config describes."""
    return PromptRenderer.from_pretrained(
        config.model.path,
        template=config.data.template,
        system_prompt=config.data.system_prompt,
        max_prompt_tokens=config.data.max_prompt_tokens,
        min_pixels=config.data.min_pixels,
        max_pixels=config.data.max_pixels,
    )
