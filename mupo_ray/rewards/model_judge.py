r"""A model as judge of open answers, behind any address that speaks OpenAI's chat completions.

    rules say not right --> prompt (question, gold, answer) --> model --> score from 0 to 1
                                  \-- the same prompt again: from the cache

Every try has a hard limit, `timeout_s`, and there are 1 + `max_retries` of them with short pauses
between. What fails is `Reason.JUDGE_FAILED`: counted, logged, not cached.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mupo_ray.rewards.equality.compare import MAX_CHARS
from mupo_ray.rewards.equality.spelling import normalise
from mupo_ray.rewards.equality.words import is_open_answer
from mupo_ray.types import Reason, Verdict

if TYPE_CHECKING:
    from mupo_ray.settings.sections import ModelJudgeConfig

_LOG = logging.getLogger(__name__)
_SCORE = re.compile(r"(?<![-\d.])(?:0(?:\.\d+)?|1(?:\.0+)?|\.\d+)(?![\d.]*\d)")
_FIRST_PAUSE_S = 0.25
_RETRIED_CODES = frozenset({408, 409, 429})


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
        self._cache: OrderedDict[str, float] = OrderedDict()
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

    def judge(self, verdicts: Sequence[Verdict], asked: Sequence[OpenQuestion]) -> list[Verdict]:
        """The verdicts with the model's scores, in order; equal questions are asked once.

        Raises:
            ImportError: no `openai` package.
        """
        scores = self._scores(asked)
        return [
            replace(verdict, accuracy=0.0, reason=Reason.JUDGE_FAILED)
            if score is None
            else replace(verdict, accuracy=score, reason=Reason.JUDGED)
            for verdict, score in zip(verdicts, scores, strict=True)
        ]

    def _scores(self, asked: Sequence[OpenQuestion]) -> list[float | None]:
        prompts = [self._prompt(question) for question in asked]
        keys = [hashlib.sha256(prompt.encode("utf-8", "replace")).hexdigest() for prompt in prompts]
        with self._lock:
            scores = {key: self._cache[key] for key in keys if key in self._cache}
        todo = {key: p for key, p in zip(keys, prompts, strict=True) if key not in scores}
        found: dict[str, float | None] = dict(scores)
        if todo:
            # A loop of its own: the caller may stand in one, and in any thread.
            with ThreadPoolExecutor(1) as thread:
                answers = thread.submit(asyncio.run, self._ask_all(list(todo.values()))).result()
            found |= zip(todo, answers, strict=True)
        with self._lock:
            for key, score in found.items():
                if score is not None:
                    self._cache[key] = score
                    self._cache.move_to_end(key)
            while len(self._cache) > self._config.cache_answers:
                self._cache.popitem(last=False)
        return [found[key] for key in keys]

    def _prompt(self, asked: OpenQuestion) -> str:
        """The parts are put in at once: braces in one of them are no field."""
        parts = {"{question}": asked.question, "{gold}": asked.gold, "{answer}": asked.answer}
        return re.sub(
            "|".join(map(re.escape, parts)), lambda match: parts[match[0]], self._config.prompt
        )

    async def _ask_all(self, prompts: list[str]) -> list[float | None]:
        try:
            import openai
        except ImportError as error:
            raise ImportError(
                "reward.model_judge needs the package openai, which comes with vLLM: "
                'pip install "mupo_ray[gpu]" or "mupo_ray[cpu]"'
            ) from error
        gate = asyncio.Semaphore(self._config.max_concurrent)
        async with openai.AsyncOpenAI(
            base_url=self._config.base_url,
            # Servers of one's own want none, but the client insists on some text.
            api_key=os.environ.get(self._config.api_key_env) or "none",
            max_retries=0,
            timeout=self._config.timeout_s,
        ) as client:
            return await asyncio.gather(*(self._ask(client, gate, prompt) for prompt in prompts))

    async def _ask(self, client: Any, gate: asyncio.Semaphore, prompt: str) -> float | None:
        why = ""
        async with gate:
            for attempt in range(1 + self._config.max_retries):
                if attempt:
                    await asyncio.sleep(_FIRST_PAUSE_S * 2 ** (attempt - 1))
                try:
                    # The client's own limit is for each read; a reply that drips never meets it.
                    reply = await asyncio.wait_for(
                        client.chat.completions.create(
                            model=self._config.model,
                            messages=[{"role": "user", "content": prompt}],
                            temperature=0.0,
                            max_tokens=self._config.max_tokens,
                        ),
                        self._config.timeout_s,
                    )
                    return _score(reply)
                except Exception as error:
                    # Connection, status, time limit, or a reply that is none: all named below.
                    why = f"{type(error).__name__}: {str(error)[:200]}"
                    if not _is_worth_another_try(error):
                        break
        _LOG.warning("no score from %s at %s: %s", self._config.model, self._config.base_url, why)
        return None


def _score(reply: Any) -> float:
    """The one number from 0 to 1 in the last line of what the model said."""
    text = (reply.choices[0].message.content or "").strip()
    found = _SCORE.findall(text.splitlines()[-1]) if text else []
    if len(found) != 1:
        raise ValueError(f"got {text[-80:]!r}, should end with one number from 0 to 1")
    return float(found[0])


def _is_worth_another_try(error: Exception) -> bool:
    code = getattr(error, "status_code", None)
    if code is not None:
        return code in _RETRIED_CODES or code >= 500
    # A reply that cannot be read would be the same again.
    return not isinstance(error, ValueError | AttributeError | TypeError | IndexError)
