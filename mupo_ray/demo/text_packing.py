"""Several responses of the warm start behind one prompt, as one row.

Letters: B = puzzles of a step, L = tokens of a packed row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from mupo_ray.demo.puzzle_text import MAX_RESPONSE_TOKENS
from mupo_ray.demo.puzzles import PROMPT
from mupo_ray.demo.tiny_model import END_TOKEN, IMAGE_TOKEN, vocabulary

if TYPE_CHECKING:
    from transformers import Qwen2_5_VLForConditionalGeneration

IMAGE_TOKENS = 9
"""Of a puzzle's picture."""

_IGNORE = -100


class TextPacker:
    """Packs several responses behind one prompt, so that a picture is read once for all of them.

    A row is the prompt, then one slot a response. A response attends to the prompt and to itself,
    and its positions continue the prompt's: to each of them the row looks as if it stood alone.
    """

    def __init__(self, model: Qwen2_5_VLForConditionalGeneration) -> None:
        self._model = model
        self._ids = {token: i for i, token in enumerate(vocabulary())}
        question = PROMPT.removeprefix("<image> ").split()
        prompt = ["<|im_start|>", "user", "<|vision_start|>", *[IMAGE_TOKEN] * IMAGE_TOKENS]
        prompt += ["<|vision_end|>", *question, END_TOKEN, "<|im_start|>", "assistant"]
        self.prompt_ids = torch.tensor([self._ids[token] for token in prompt])
        self._image = self.prompt_ids == self._ids[IMAGE_TOKEN]
        positions, _ = model.model.get_rope_index(
            self.prompt_ids[None],
            image_grid_thw=torch.tensor([[1, 6, 6]]),
            mm_token_type_ids=self._image[None].int(),
        )
        self._prompt_positions = positions[:, 0]

    def loss(self, features: torch.Tensor, texts: list[list[str]]) -> torch.Tensor:
        """Mean cross entropy of all response tokens.

        Args:
            features: [B, 9, hidden] image features.
            texts: B lists of equally many responses.
        """
        num_prompt, num_slots = len(self.prompt_ids), len(texts[0])
        slot_ids = torch.tensor([[self._encode(text) for text in row] for row in texts])
        hidden = self._hidden(features, slot_ids.clamp(min=0))
        # The token before each response is the prompt's last, shared by all slots.
        own = hidden[:, num_prompt:].view(len(texts), num_slots, MAX_RESPONSE_TOKENS, -1)
        first = hidden[:, None, num_prompt - 1 : num_prompt].expand(-1, num_slots, -1, -1)
        before = torch.cat([first, own[:, :, :-1]], dim=2)
        kept = slot_ids != _IGNORE
        return functional.cross_entropy(self._model.lm_head(before[kept]), slot_ids[kept])

    def _hidden(self, features: torch.Tensor, slot_ids: torch.Tensor) -> torch.Tensor:
        """[B, L, hidden] last states of the packed rows."""
        batch, num_slots, width = slot_ids.shape
        ids = torch.cat([self.prompt_ids.expand(batch, -1), slot_ids.flatten(1)], dim=1)
        embedded = self._model.get_input_embeddings()(ids)
        num_prompt = len(self.prompt_ids)
        image = functional.pad(self._image, (0, num_slots * width))
        embedded = embedded.masked_scatter(image[None, :, None].expand_as(embedded), features)
        steps = self._prompt_positions.max() + 1 + torch.arange(width).repeat(num_slots)
        positions = torch.cat([self._prompt_positions, steps.expand(3, -1)], dim=1)
        slot = torch.cat(
            [torch.full((num_prompt,), -1), torch.arange(num_slots).repeat_interleave(width)]
        )
        causal = torch.ones(len(slot), len(slot), dtype=torch.bool).tril()
        sees = causal & ((slot[:, None] == slot[None]) | (slot[None] == -1))
        output = self._model.model.language_model(
            inputs_embeds=embedded,
            position_ids=positions[:, None].expand(-1, batch, -1),
            attention_mask=sees.expand(batch, 1, -1, -1),
            use_cache=False,
        )
        hidden: torch.Tensor = output.last_hidden_state
        return hidden

    def _encode(self, text: str) -> list[int]:
        ids = [self._ids[word] for word in text.split()] + [self._ids[END_TOKEN]]
        return ids + [_IGNORE] * (MAX_RESPONSE_TOKENS - len(ids))
