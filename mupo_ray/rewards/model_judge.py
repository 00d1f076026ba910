r"""A model as judge of open answers, behind any address that speaks OpenAI's chat completions.

    rules say not right --> prompt (question, gold, answer) --> model --> score from 0 to 1
                                  \-- the same prompt again: from the cache

Every try has a hard limit, `timeout_s`, and there are 1 + `max_retries` of them with pauses between
(`openai_client.py`); a reply without a score would be the same again. What fails is
`Reason.JUDGE_FAILED`: counted, logged, not cached.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cachetools import LRUCache

from mupo_ray.files import sha256_of
from mupo_ray.openai_client import ChatClient, ChatServer, NoReplyError
from mupo_ray.rewards.equality.compare import MAX_CHARS
from mupo_ray.rewards.equality.spelling import normalise
from mupo_ray.rewards.equality.words import is_open_answer
from mupo_ray.types import Reason, Verdict

if TYPE_CHECKING:
    from mupo_ray.settings.sections import ModelJudgeConfig

_LOG = logging.getLogger(__name__)
_FIRST_PAUSE_S = 0.25
_SCORE = re.compile(r"(?<![-\d.])(?:0(?:\.\d+)?|1(?:\.0+)?|\.\d+)(?![\d.]*\d)")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenQuestion:
    """What the model is told."""

    question: str
    gold: str
    answer: str


class ModelJudge:
    """Asks a model where rules do not decide; safe to use from any thread."""

    def __init__(self, config: ModelJudgeConfig) -> None:
        self._config = config
        self._server = ChatServer(
            address=config.base_url,
            model=config.model,
            api_key_env=config.api_key_env,
            max_concurrent=config.max_concurrent,
            timeout_s=config.timeout_s,
            max_retries=config.max_retries,
            first_pause_s=_FIRST_PAUSE_S,
        )
        self._cache: LRUCache[str, float] = LRUCache(config.cache_answers)
        self._lock = threading.Lock()

    def wants(self, verdict: Verdict, gold: str, *, has_options: bool) -> bool:
        """Whether the model is to be asked about a verdict that rules gave."""
        if verdict.reason not in (Reason.WRONG, Reason.UNPARSABLE, Reason.TIMEOUT):
            return False
        if verdict.extracted is None or len(verdict.extracted) > MAX_CHARS:
            return False
        if self._config.asked_for == "not_right":
            return True
        return not has_options and is_open_answer(normalise(gold))

    def judge(
        self, verdicts: Sequence[Verdict], questions: Sequence[OpenQuestion]
    ) -> list[Verdict]:
        """The verdicts with the model's scores, in order; equal questions are asked once.

        Raises:
            ImportError: no `openai` package.
        """
        scores = self._scores(questions)
        return [
            replace(verdict, accuracy=0.0, reason=Reason.JUDGE_FAILED)
            if score is None
            else replace(verdict, accuracy=score, reason=Reason.JUDGED)
            for verdict, score in zip(verdicts, scores, strict=True)
        ]

    def _scores(self, questions: Sequence[OpenQuestion]) -> list[float | None]:
        prompts = list(map(self._prompt, questions))
        with self._lock:
            scores = {prompt: self._cache.get(_key(prompt)) for prompt in prompts}
        todo = [prompt for prompt, score in scores.items() if score is None]
        if todo:
            # A loop of its own: the caller may stand in one, and in any thread.
            with ThreadPoolExecutor(1) as thread:
                answers = thread.submit(asyncio.run, self._ask_all(todo)).result()
            scores |= zip(todo, answers, strict=True)
        if self._cache.maxsize:
            with self._lock:
                self._cache.update(
                    (_key(prompt), score) for prompt, score in scores.items() if score is not None
                )
        return [scores[prompt] for prompt in prompts]

    def _prompt(self, question: OpenQuestion) -> str:
        """The parts are put in at once: braces in one of them are no field."""
        parts = {
            "{question}": question.question,
            "{gold}": question.gold,
            "{answer}": question.answer,
        }
        return re.sub(
            "|".join(map(re.escape, parts)), lambda match: parts[match[0]], self._config.prompt
        )

    async def _ask_all(self, prompts: Sequence[str]) -> list[float | None]:
        async with ChatClient(self._server) as client:
            return await asyncio.gather(*(self._ask(client, prompt) for prompt in prompts))

    async def _ask(self, client: ChatClient, prompt: str) -> float | None:
        try:
            text = await client.ask(
                [{"role": "user", "content": prompt}],
                lambda reply: reply.choices[0].message.content or "",
                temperature=0.0,
                max_tokens=self._config.max_tokens,
            )
            return _score(text)
        except (NoReplyError, ValueError) as error:
            _LOG.warning("no score from %s: %s", self._server, error)
            return None


def _key(prompt: str) -> str:
    """A policy's answer may hold half a surrogate pair, which UTF-8 cannot."""
    return sha256_of(prompt.encode("utf-8", "replace"))


def _score(text: str) -> float:
    """The one number from 0 to 1 in the last line of what the model said."""
    text = text.strip()
    scores = _SCORE.findall(text.splitlines()[-1]) if text else []
    if len(scores) != 1:
        raise ValueError(f"got {text[-80:]!r}, should end with one number from 0 to 1")
    return float(scores[0])
