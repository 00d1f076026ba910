"""All that turns a response into a `Verdict`: rules, algebra, a model judge, rewards of one's own.

    text --extract--> answer --+-- equality/ --+-- cheap rules decide --> reason --> Verdict
    gold --clean_gold--> gold -+               +-- else algebra_pool

`verdicts_of` needs texts alone. A `Verifier` holds what a run adds to it: the shape of the prompt,
the prompts' options, a model that judges what rules do not decide, and the user's own functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from mupo_ray.errors import DataError
from mupo_ray.rewards import extract
from mupo_ray.rewards.algebra_pool import AlgebraPool, default_algebra_pool
from mupo_ray.rewards.equality.choices import Options, check_options, normalise_options
from mupo_ray.rewards.equality.compare import NeedsAlgebraError, compare, no_algebra
from mupo_ray.rewards.equality.spelling import normalise
from mupo_ray.rewards.extra import ExtraReward, extra_values, load_extra_rewards
from mupo_ray.rewards.model_judge import ModelJudge, OpenQuestion
from mupo_ray.types import Reason, Verdict

if TYPE_CHECKING:
    from mupo_ray.settings.sections import RewardConfig
    from mupo_ray.types import Prompt, Response

OPTIONS_COLUMN = "options"
"""Text column of a data set with the options of a multiple choice row, as JSON."""

_BOX = "\\boxed{"

_Pair = tuple[str, str, Options]
"""Answer, gold and options: all that a comparison depends on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verifier:
    """Gives verdicts on the responses to prompts."""

    algebra_pool: AlgebraPool
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
            algebra_pool=AlgebraPool(limit_s=config.verify_timeout_s),
            is_think_opened=is_think_opened,
            model_judge=None if config.model_judge is None else ModelJudge(config.model_judge),
            extra=load_extra_rewards(config.extra),
        )

    def verdicts_of(
        self, prompts: Sequence[Prompt], sampled: Sequence[Sequence[Response]]
    ) -> list[tuple[Verdict, ...]]:
        """A verdict for every response to each prompt.

        Raises:
            DataError: a prompt's options are not what they should be.
            RewardError: no algebra worker can start, or a reward of the user's own failed.
        """
        texts = [[response.text for response in responses] for responses in sampled]
        several = self.verdicts_of_texts(prompts, texts)
        if not self.extra:
            return several
        return [
            tuple(
                replace(verdict, extra=extra_values(self.extra, prompt, response, verdict))
                for response, verdict in zip(responses, verdicts, strict=True)
            )
            for prompt, responses, verdicts in zip(prompts, sampled, several, strict=True)
        ]

    def verdicts_of_texts(
        self, prompts: Sequence[Prompt], texts: Sequence[Sequence[str]]
    ) -> list[tuple[Verdict, ...]]:
        """A verdict for every text, without the user's own rewards.

        Args:
            prompts: their pictures are not looked at.
            texts: of the responses to each prompt.

        Raises:
            DataError: a prompt's options are not what they should be.
            RewardError: no algebra worker can start.
        """
        options = [options_of(prompt) for prompt in prompts]
        rows = [
            (prompt, letters, text)
            for prompt, letters, responses in zip(prompts, options, texts, strict=True)
            for text in responses
        ]
        verdicts = verdicts_of(
            [text for _, _, text in rows],
            [prompt.answer for prompt, _, _ in rows],
            [letters for _, letters, _ in rows],
            is_think_opened=self.is_think_opened,
            algebra_pool=self.algebra_pool,
        )
        if self.model_judge is not None:
            _ask_model(self.model_judge, [prompt for prompt, _, _ in rows], verdicts)
        rest = iter(verdicts)
        return [tuple(next(rest) for _ in responses) for responses in texts]

    def close(self) -> None:
        """End the algebra workers."""
        self.algebra_pool.close()


def verdict_of(
    text: str,
    gold: str | None,
    *,
    options: Mapping[str, str] | None = None,
    is_think_opened: bool = False,
    algebra_pool: AlgebraPool | None = None,
) -> Verdict:
    r"""The verdict on one response.

    Args:
        text: the whole response, special tokens left out.
        gold: the right answer; one `\boxed{...}` or pair of dollars around it is taken off. Empty
            or None never earns a reward.
        options: of a multiple choice question: letter -> text.
        is_think_opened: the rendered prompt ends with `<think>`, so the response need not open it.
        algebra_pool: where algebra is done; None takes this process's own. Its `limit_s` bounds the
            time one response can take, whatever its text.

    Raises:
        RewardError: no algebra worker can start.
    """
    (verdict,) = verdicts_of(
        [text], [gold], [options], is_think_opened=is_think_opened, algebra_pool=algebra_pool
    )
    return verdict


def verdicts_of(
    texts: Sequence[str],
    golds: Sequence[str | None],
    options: Sequence[Mapping[str, str] | None] | None = None,
    *,
    is_think_opened: bool = False,
    algebra_pool: AlgebraPool | None = None,
) -> list[Verdict]:
    """Verdicts on responses, in order; equal pairs of answer and gold are compared once.

    One that runs out of its limit gets `Reason.TIMEOUT` and leaves the others as they are.

    Args:
        texts: whole responses.
        golds: the right answer to each.
        options: of each question, as in `verdict_of`; None where none has any.
        is_think_opened: as in `verdict_of`.
        algebra_pool: as in `verdict_of`.

    Raises:
        ValueError: lengths differ.
        RewardError: no algebra worker can start.
    """
    if len(texts) != len(golds):
        raise ValueError(f"need one gold answer a text, got {len(texts)} texts, {len(golds)} golds")
    if options is not None and len(options) != len(texts):
        raise ValueError(f"need options a text, got {len(texts)} texts, {len(options)} options")
    if is_think_opened:
        texts = ["<think>" + text for text in texts]
    cleaned = {gold: clean_gold(gold) for gold in set(golds)}
    rows = [
        (extract.extract_answer(text), cleaned[gold], normalise_options(letters))
        for text, gold, letters in zip(texts, golds, options or [None] * len(texts), strict=True)
    ]
    pairs = [
        (answer, gold, letters)
        for answer, gold, letters in rows
        if answer is not None and gold is not None
    ]
    reasons = _compare_all(list(dict.fromkeys(pairs)), algebra_pool)
    verdicts = []
    for text, (answer, gold, letters) in zip(texts, rows, strict=True):
        if gold is None:
            reason = Reason.NO_GOLD
        elif answer is None:
            reason = Reason.NO_ANSWER
        else:
            reason = reasons[answer, gold, letters]
        verdicts.append(
            Verdict(
                accuracy=float(reason is Reason.RIGHT),
                format=float(extract.has_format(text)),
                extracted=answer,
                reason=reason,
            )
        )
    return verdicts


def clean_gold(gold: str | None) -> str | None:
    """A gold answer as it is compared, or None where nothing can equal it (to report at load)."""
    if gold is None:
        return None
    text = gold.strip()
    if len(text) > 1 and text[0] == text[-1] == "$":
        text = text.strip("$").strip()
    if text.startswith(_BOX) and text.endswith("}") and text.count(_BOX) == 1:
        text = extract.extract_answer(text) or ""
    return text if normalise(text) else None


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


def _compare_all(pairs: list[_Pair], algebra_pool: AlgebraPool | None) -> dict[_Pair, Reason]:
    """Cheap pairs here and now; the rest side by side in the pool's workers."""
    reasons: dict[_Pair, Reason] = {}
    rest: list[_Pair] = []
    for pair in pairs:
        answer, gold, options = pair
        try:
            reasons[pair] = compare(answer, gold, no_algebra, options)
        except NeedsAlgebraError:
            rest.append(pair)
    if not rest:
        return reasons
    pool = algebra_pool or default_algebra_pool()

    def compare_slowly(pair: _Pair) -> Reason:
        answer, gold, options = pair
        return compare(answer, gold, pool.for_one_answer(), options)

    if len(rest) == 1:
        return reasons | {rest[0]: compare_slowly(rest[0])}
    with ThreadPoolExecutor(min(pool.num_workers, len(rest))) as threads:
        return reasons | dict(zip(rest, threads.map(compare_slowly, rest), strict=True))


def _ask_model(model_judge: ModelJudge, prompts: list[Prompt], verdicts: list[Verdict]) -> None:
    """Replace, in place, the verdicts that the model is to give."""
    indices = [
        index
        for index, (prompt, verdict) in enumerate(zip(prompts, verdicts, strict=True))
        if model_judge.wants(verdict, prompt.answer, has_options=OPTIONS_COLUMN in prompt.meta)
    ]
    questions = [
        OpenQuestion(
            question=prompts[index].question,
            gold=prompts[index].answer,
            answer=verdicts[index].extracted or "",
        )
        for index in indices
    ]
    judged = model_judge.judge([verdicts[index] for index in indices], questions)
    for index, verdict in zip(indices, judged, strict=True):
        verdicts[index] = verdict
