"""All that turns a response into a verdict, in one object: rules, model judge, own rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from mupo_ray.errors import DataError
from mupo_ray.rewards.algebra_pool import Grader
from mupo_ray.rewards.equality.choices import check_options
from mupo_ray.rewards.extra import ExtraReward, extra_values, load_extra_rewards
from mupo_ray.rewards.judge import judge_many
from mupo_ray.rewards.model_judge import ModelJudge, OpenQuestion

if TYPE_CHECKING:
    from mupo_ray.settings.sections import RewardConfig
    from mupo_ray.types import Prompt, Response, Verdict

OPTIONS_COLUMN = "options"
"""Text column of a data set with the options of a multiple choice row, as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verifier:
    """Judges the responses to prompts."""

    grader: Grader
    is_think_opened: bool = False
    """The chat template ends every prompt with `<think>`."""
    model_judge: ModelJudge | None = None
    extra: tuple[ExtraReward, ...] = ()

    @classmethod
    def from_config(cls, config: RewardConfig, *, is_think_opened: bool) -> Verifier:
        """The verifier that a config describes.

        Raises:
            ConfigError: a reward of the user's own cannot be loaded.
        """
        return cls(
            grader=Grader(limit_s=config.verify_timeout_s),
            is_think_opened=is_think_opened,
            model_judge=None if config.model_judge is None else ModelJudge(config.model_judge),
            extra=load_extra_rewards(config.extra),
        )

    def judge(
        self, prompts: Sequence[Prompt], sampled: Sequence[Sequence[Response]]
    ) -> list[tuple[Verdict, ...]]:
        """A verdict for every response to each prompt.

        Raises:
            DataError: a prompt's options are not what they should be.
            RewardError: the grader cannot start, or a reward of the user's own failed.
        """
        texts = [[response.text for response in responses] for responses in sampled]
        judged = self.judge_texts(prompts, texts)
        if not self.extra:
            return judged
        return [
            tuple(
                replace(verdict, extra=extra_values(self.extra, prompt, response, verdict))
                for response, verdict in zip(responses, verdicts, strict=True)
            )
            for prompt, responses, verdicts in zip(prompts, sampled, judged, strict=True)
        ]

    def judge_texts(
        self, prompts: Sequence[Prompt], texts: Sequence[Sequence[str]]
    ) -> list[tuple[Verdict, ...]]:
        """A verdict for every text, without the user's own rewards.

        Args:
            prompts: their pictures are not looked at.
            texts: of the responses to each prompt.

        Raises:
            DataError: a prompt's options are not what they should be.
            RewardError: the grader cannot start.
        """
        counts = [len(given) for given in texts]
        asked = [p for p, count in zip(prompts, counts, strict=True) for _ in range(count)]
        options = [
            given
            for prompt, count in zip(prompts, counts, strict=True)
            for given in [options_of(prompt)] * count
        ]
        verdicts = judge_many(
            [text for given in texts for text in given],
            [prompt.answer for prompt in asked],
            options,
            is_think_opened=self.is_think_opened,
            grader=self.grader,
        )
        if self.model_judge is not None:
            self._ask_model(self.model_judge, asked, verdicts)
        rest = iter(verdicts)
        return [tuple(next(rest) for _ in range(count)) for count in counts]

    def close(self) -> None:
        """End the grading workers."""
        self.grader.close()

    @staticmethod
    def _ask_model(model_judge: ModelJudge, prompts: list[Prompt], verdicts: list[Verdict]) -> None:
        """Replace, in place, the verdicts that the model is to give."""
        open_ones = [
            index
            for index, (prompt, verdict) in enumerate(zip(prompts, verdicts, strict=True))
            if model_judge.wants(verdict, prompt.answer, has_options=OPTIONS_COLUMN in prompt.meta)
        ]
        asked = [
            OpenQuestion(
                question=prompts[index].question,
                gold=prompts[index].answer,
                answer=verdicts[index].extracted or "",
            )
            for index in open_ones
        ]
        judged = model_judge.judge([verdicts[index] for index in open_ones], asked)
        for index, verdict in zip(open_ones, judged, strict=True):
            verdicts[index] = verdict


def options_of(prompt: Prompt) -> Mapping[str, str] | None:
    """Options of a multiple choice prompt, out of its data's column `options`.

    Raises:
        DataError: the column holds something else.
    """
    text = prompt.meta.get(OPTIONS_COLUMN)
    if text is None or not text.strip():
        return None
    try:
        return _parse_options(text)
    except ValueError as error:
        raise DataError(f"prompt {prompt.prompt_id}: {error}") from error


@lru_cache(maxsize=1024)
def _parse_options(text: str) -> Mapping[str, str]:
    return check_options(text)
