"""Prompts for a server that has its own tokenizer: texts and pictures as chat messages."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mupo_ray.data.render import load_images, load_template, make_prompt, user_content

if TYPE_CHECKING:
    from mupo_ray.data.table import Row
    from mupo_ray.types import Prompt, RgbImage


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRenderer:
    """Turns rows into prompts without tokens, and prompts into messages."""

    template: str
    """Text with `{problem}` in it."""
    system_prompt: str | None

    @classmethod
    def from_template(cls, template: str, system_prompt: str | None) -> ChatRenderer:
        """Build a renderer.

        Args:
            template: as for `PromptRenderer.from_pretrained`.
            system_prompt: system message; none where None.

        Raises:
            DataError: a bad prompt template.
        """
        return cls(template=load_template(template), system_prompt=system_prompt)

    def render(self, row: Row, *, position: int) -> Prompt:
        """The prompt of one row; the server counts its tokens.

        Raises:
            RowError: the row cannot be used; `reason` says why.
        """
        return make_prompt(row, load_images(row), (), position=position)

    def messages(self, prompt: Prompt) -> list[dict[str, Any]]:
        """Chat messages as OpenAI's API takes them, pictures as data URLs."""
        images = iter(prompt.images)
        content = [
            {"type": "image_url", "image_url": {"url": _data_url(next(images))}}
            if piece is None
            else {"type": "text", "text": piece}
            for piece in user_content(self.template, prompt.question, len(prompt.images))
        ]
        system = [] if self.system_prompt is None else [("system", self.system_prompt)]
        return [{"role": role, "content": pieces} for role, pieces in [*system, ("user", content)]]


def _data_url(image: RgbImage) -> str:
    """A picture without loss: the model sees the very pixels that a local one would."""
    buffer = io.BytesIO()
    image.pil().save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
