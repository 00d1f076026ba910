"""What `/v1/strategies` asks of an engine, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Text that one response grew by."""

    index: int
    text: str
    num_tokens: int
    num_prompt_tokens: int
    """Of the prompt, pictures expanded."""
    finish_reason: str | None
    """`stop` or `length` with the last piece."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleOptions:
    """How to sample several responses."""

    num_generations: int
    max_new_tokens: int | None
    temperature: float
    top_p: float
    seed: int | None
    """Responses differ from call to call where None."""
