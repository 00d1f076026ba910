"""Token ids to the text that follows a prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

# A tokenizer may write a token differently at the very start of a text (without its space, say).
_CONTEXT = 6


def continuations(
    tokenizer: Any, prompt_ids: Sequence[int], completions: Sequence[Sequence[int]]
) -> list[str]:
    """Texts of responses as they read after their prompt, without special tokens.

    All at once when responses are whole: vLLM's own way, token by token and once more for each
    log-probability, costs a third of the engine process's time on CPU.

    Args:
        tokenizer: a Hugging Face tokenizer.
        prompt_ids: tokens of the prompt.
        completions: tokens of each response.

    Returns:
        One text a response.
    """
    tail = list(prompt_ids[-_CONTEXT:])
    before = tokenizer.decode(tail, skip_special_tokens=True)
    texts = tokenizer.batch_decode([[*tail, *ids] for ids in completions], skip_special_tokens=True)
    return [text.removeprefix(before) for text in texts]
