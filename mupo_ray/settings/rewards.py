"""The sections of the configuration that say what a response earns."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from mupo_ray.settings.sections import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Seconds,
    Section,
)


class OverlongConfig(Section):
    """DAPO's soft penalty for responses near the length limit."""

    buffer_tokens: PositiveInt = 8
    """The penalty grows from 0 to `penalty` over this many last tokens."""
    penalty: PositiveFloat = 1.0
    """Largest penalty."""


class ExtraRewardConfig(Section):
    """A reward of one's own, a Python function."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$")]
    """Name of the part, in metrics and records."""
    path: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
    """`module:function`; called for each response with its unweighted parts and a context."""
    weight: float = 1.0
    """What the value is multiplied by; below 0 makes it a penalty."""


class ModelJudgeConfig(Section):
    """A model that judges answers, at an address that speaks OpenAI's chat completions."""

    base_url: Annotated[str, Field(pattern=r"^https?://\S+$")] = "http://127.0.0.1:8000/v1"
    """Address, up to and with `/v1`."""
    model: str = "judge"
    """Name of the model at that address."""
    asked_for: Literal["open_answers", "not_right"] = "open_answers"
    """Golds of free words that rules find no match for, or all answers that rules do not call
    right."""
    prompt: str = (
        "Question: {question}\nReference answer: {gold}\nAnswer to grade: {answer}\n\n"
        "How well does the answer say what the reference says, from 0.0 (not at all) to 1.0 "
        "(fully)? Reply with the number alone."
    )
    """What the model is asked; holds `{gold}` and `{answer}`, and may hold `{question}`. The last
    line of the reply has to hold one number from 0 to 1."""
    max_tokens: PositiveInt = 16
    """Longest reply."""
    timeout_s: Seconds = 30.0
    """Longest wait for one reply."""
    max_retries: NonNegativeInt = 2
    """Further tries after a failed connection, a late reply or a busy server."""
    max_concurrent: PositiveInt = 16
    """Questions under way at a time, from one worker."""
    cache_answers: NonNegativeInt = 100_000
    """Scores kept by content of the prompt, the least recently used dropped first."""
    api_key_env: str = "OPENAI_API_KEY"
    """Environment variable with the key; may be unset where the server wants none."""

    @model_validator(mode="after")
    def prompt_shows_both_answers(self) -> Self:
        """Without them there is nothing to compare."""
        missing = [part for part in ("{gold}", "{answer}") if part not in self.prompt]
        if missing:
            raise ValueError(f"prompt lacks {' and '.join(missing)}; should hold both")
        return self


class RewardConfig(Section):
    """Reward of a response before a method adds to it."""

    accuracy_weight: NonNegativeFloat = 0.9
    """Weight of a right answer."""
    format_weight: NonNegativeFloat = 0.1
    """Weight of the asked-for shape."""
    overlong: OverlongConfig | None = None
    """Penalty for responses near the length limit; off where null."""
    extra: tuple[ExtraRewardConfig, ...] = ()
    """Rewards of one's own, each `{name: ..., path: "module:function", weight: ...}`."""
    model_judge: ModelJudgeConfig | None = None
    """A model that judges what rules do not decide; off where null."""
    verify_timeout_s: Seconds = 5.0
    """Hard limit on the comparison of one answer."""

    @model_validator(mode="after")
    def some_reward_has_weight(self) -> Self:
        """A response can earn something."""
        extra = sum(abs(reward.weight) for reward in self.extra)
        if self.accuracy_weight + self.format_weight + extra == 0:
            raise ValueError(
                "accuracy_weight and format_weight are both 0; at least one should be above 0"
            )
        return self

    @model_validator(mode="after")
    def extra_rewards_have_names_of_their_own(self) -> Self:
        """A part is known by its name."""
        taken = {"accuracy", "format", "diversity", "overlong", "total"}
        for reward in self.extra:
            if reward.name in taken:
                raise ValueError(f"extra has {reward.name!r} twice, or it is a part's name already")
            taken.add(reward.name)
        return self
