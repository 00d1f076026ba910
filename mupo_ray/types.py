"""The values that travel between stages: prompts, responses, cohorts, verdicts.

All are frozen, slotted and keyword-only. Shapes: N = responses to one prompt, T = tokens of one
response, P = tokens of one prompt, K = groups, D = embedding width.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image as PilImage
    from torch import Tensor


class FinishReason(StrEnum):
    """Why an engine stopped sampling a response."""

    STOP = "stop"
    LENGTH = "length"

    @property
    def is_truncated(self) -> bool:
        """True where the token limit ended the response before the policy did."""
        return self is FinishReason.LENGTH


@dataclass(frozen=True, slots=True, kw_only=True)
class RgbImage:
    """One decoded picture, kept once a prompt however many responses look at it."""

    sha256: str
    """Content hash of the encoded bytes that the data file holds."""
    width: int
    height: int
    rgb: bytes
    """`height * width * 3` bytes, row major."""

    def pil(self) -> PilImage.Image:
        """The picture as a PIL image."""
        from PIL import Image

        return Image.frombytes("RGB", (self.width, self.height), self.rgb)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A question ready to be sampled from: rendered, tokenised, images decoded."""

    prompt_id: str
    """Content hash of the row; the same row has the same id in every run."""
    position: int
    """Place in the endless shuffled sequence of prompts (epoch * rows + place in the epoch)."""
    token_ids: tuple[int, ...]
    """The rendered chat prompt with ONE placeholder token an image, as vLLM takes it."""
    images: tuple[RgbImage, ...] = ()
    question: str
    answer: str
    """Gold answer as text."""
    meta: dict[str, str] = field(default_factory=dict)
    """Other text columns of the row (category, source, ...), carried along for reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """One sampled answer."""

    text: str
    """Decoded without special tokens."""
    completion_ids: np.ndarray
    """[T] int64, with the end token where the policy sampled one; T >= 1."""
    sampler_logprobs: np.ndarray
    """[T] float32 log-probability of each token under the weights that sampled it, at the sampling
    temperature; empty where they were not asked for."""
    finish_reason: FinishReason
    policy_version: int
    """Finished optimiser steps of the weights that sampled it."""
    seed: int
    engine: int
    """Index in the pool of the engine that sampled it."""
    is_given: np.ndarray | None = None
    """[T] bool, true where the policy did not choose the token; None: it chose all."""

    @property
    def num_tokens(self) -> int:
        """T."""
        return int(self.completion_ids.shape[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledResponse:
    """A response as an evaluation keeps it: nothing derived, no tokens."""

    text: str
    num_tokens: int
    is_truncated: bool

    @classmethod
    def of(cls, response: Response) -> Self:
        """What is kept of an engine's response."""
        return cls(
            text=response.text,
            num_tokens=response.num_tokens,
            is_truncated=response.finish_reason.is_truncated,
        )


class Reason(StrEnum):
    """Why a verdict came out as it did; each is a metric of its own."""

    RIGHT = "right"
    WRONG = "wrong"
    NO_ANSWER = "no_answer"
    """No complete boxed answer after the reasoning."""
    UNPARSABLE = "unparsable"
    TIMEOUT = "timeout"
    """Comparing the answer ran out of its time or memory limit."""
    NO_GOLD = "no_gold"
    """The gold answer is empty or missing; such a row never earns a reward."""
    BAD_ROW = "bad_row"
    """A row of a file to grade that is not what it should be; never in training."""
    JUDGED = "judged"
    """A model judged the answer; the accuracy is its score."""
    JUDGE_FAILED = "judge_failed"
    """The model judge was asked and gave no score in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the verifier says of one response."""

    accuracy: float
    """1.0 right, 0.0 not; a model judge may say something between."""
    format: float
    """1.0 where the response has the asked-for shape."""
    extracted: str | None
    """The answer text found, None where there is none."""
    reason: Reason
    extra: dict[str, float] = field(default_factory=dict)
    """Name -> value of the run's own rewards (`reward.extra`), before their weights."""

    @property
    def is_correct(self) -> bool:
        """True where the answer is right."""
        return self.accuracy >= 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cohort:
    """All N responses to one prompt, with a verdict each."""

    prompt: Prompt
    responses: tuple[Response, ...]
    verdicts: tuple[Verdict, ...]

    @property
    def accuracy_mean(self) -> float:
        """Share of right answers."""
        return sum(v.accuracy for v in self.verdicts) / len(self.verdicts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredCohort:
    """A cohort with all that the update and the records need. Every array has length N."""

    cohort: Cohort
    reward_parts: dict[str, np.ndarray]
    """Name -> [N] weighted part; `accuracy`, `format`, and what the method adds (`diversity`)."""
    rewards: np.ndarray
    """[N] float64 total reward."""
    group_ids: np.ndarray
    """[N] int64 normalisation group; all zeros where the method makes no groups."""
    advantages: np.ndarray
    """[N] float64."""
    embeddings: np.ndarray | None = None
    """[N, D] float32 unit rows, where the method embeds."""
    num_constant: int = 0
    """Normalisation groups whose rewards are all equal, hence without signal."""
    num_floored: int = 0
    """Normalisation groups whose reward spread was raised to `min_std`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """What a method's loss terms see of a micro-batch: flat columns over its T response tokens."""

    logprobs: Tensor
    """[T] of the policy, with gradient."""
    entropy: Tensor
    """[T] of the policy, with gradient."""
    old_logprobs: Tensor
    """[T] of the policy that sampled."""
    ref_logprobs: Tensor | None
    """[T] of the reference; None without a KL term."""
    advantages: Tensor
    """[T]"""
    mask: Tensor
    """[T] bool, false on given tokens."""
    response: Tensor
    """[T] index of the token's response in the micro-batch."""


@dataclass(frozen=True, slots=True)
class Metric:
    """What a metric's key means."""

    key: str
    """`area/name[/stat]`."""
    unit: str
    """`1` for a number without one; `frac` for a share from 0 to 1."""
    text: str


def own_parts(metrics: tuple[Metric, ...]) -> tuple[str, ...]:
    """Names of the reward parts among a method's metrics: x of `reward/x/mean`."""
    keys = [metric.key.split("/") for metric in metrics]
    return tuple(key[1] for key in keys if len(key) == 3 and (key[0], key[2]) == ("reward", "mean"))
