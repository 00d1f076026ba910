"""Prompts in the trainer's form, made while the engines sample."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from mupo_ray.errors import TrainingError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mupo_ray.data.encode import EncodedPrompt, PromptEncoder
    from mupo_ray.types import Prompt


class EncodeAhead:
    """Encodes in a thread of its own, in the order asked for.

    Args:
        encoder: of the model.
        timeout_s: longest wait for one prompt.
    """

    def __init__(self, encoder: PromptEncoder, timeout_s: float) -> None:
        self._encoder = encoder
        self._timeout_s = timeout_s
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="encode")
        self._begun: dict[int, Future[EncodedPrompt]] = {}
        """Position -> its prompt, until the step is over."""

    def begin(self, prompts: Sequence[Prompt]) -> None:
        """Encode these in the background."""
        for prompt in prompts:
            self._begun[prompt.position] = self._thread.submit(self._encoder.encode, prompt)

    def take(self, prompts: Sequence[Prompt]) -> list[EncodedPrompt]:
        """Those of a step's prompts that are trained on, each begun before; the others go.

        Raises:
            TrainingError: one did not come in time.
        """
        try:
            return [self._begun[p.position].result(timeout=self._timeout_s) for p in prompts]
        except TimeoutError:
            raise TrainingError(
                f"the model's image processor did not encode a prompt within {self._timeout_s:g} s "
                "(data.timeout_s)"
            ) from None
        finally:
            for future in self._begun.values():
                future.cancel()
            self._begun.clear()

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)
