"""Every metric key a run may log, declared once with its unit and meaning.

Keys read `area/name[/stat]`. A declaration may hold `<k>` (a whole number), `<set>` (an evaluation
set's name), `<reason>` (a `Reason`) or `<name>` (of a reward of the run's own). Methods declare
their own (`Method.declares`). Trackers call `check`, so a misspelt key stops the first step rather
than make a plot that nobody finds.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from functools import lru_cache

from mupo_ray.methods import METHODS
from mupo_ray.types import Metric, Reason

_PLACEHOLDERS = {
    "<k>": r"[1-9]\d*",
    "<set>": r"[A-Za-z0-9][A-Za-z0-9_.-]*",
    "<reason>": "|".join(Reason),
    "<name>": r"[A-Za-z][A-Za-z0-9_-]*",
}


def _declare(area: str, rows: Iterable[tuple[str, str, str]]) -> list[Metric]:
    return [Metric(f"{area}/{name}", unit, text) for name, unit, text in rows]


METRICS: tuple[Metric, ...] = (
    *_declare(
        "reward",
        (
            ("accuracy/mean", "frac", "right answers"),
            ("format/mean", "frac", "responses of the asked-for shape"),
            ("overlong/mean", "1", "penalty for nearing the length limit"),
            ("extra/<name>/mean", "1", "weighted reward of the run's own"),
            ("total/mean", "1", "total reward"),
            ("total/std", "1", "standard deviation of the total reward over the step"),
        ),
    ),
    *(metric for method in METHODS for metric in method.declares),
    *_declare("verdict", (("<reason>/frac", "frac", "responses whose verdict has this reason"),)),
    *_declare(
        "response",
        (
            ("length/mean", "tokens", "sampled tokens of a response"),
            ("length/max", "tokens", "the longest"),
            ("length/min", "tokens", "the shortest"),
            ("truncated/frac", "frac", "responses ended by the token limit"),
        ),
    ),
    *_declare(
        "group",
        (
            ("size/min", "responses", "smallest group of the step"),
            ("size/max", "responses", "largest group of the step"),
            ("floored_frac", "frac", "groups whose reward spread was raised to min_std"),
            ("constant_frac", "frac", "groups whose rewards are all equal, hence no signal"),
        ),
    ),
    *_declare(
        "diversity",
        (
            ("pairwise", "1", "mean cosine distance over pairs of a cohort's reasoning"),
            ("effective", "strategies", "effective number of strategies in a cohort"),
        ),
    ),
    *_declare(
        "advantage",
        (
            ("abs_mean", "1", "mean size of the advantages"),
            ("zero_frac", "frac", "responses whose advantage is zero"),
        ),
    ),
    *_declare(
        "filter",
        (
            ("kept_frac", "frac", "sampled cohorts that were trained on"),
            ("rounds", "1", "rounds of sampling until the batch was full"),
            ("dropped_right", "cohorts", "left out for being all right"),
            ("dropped_wrong", "cohorts", "left out for being all wrong"),
        ),
    ),
    *_declare(
        "loss",
        (
            ("total", "1", "what is minimised"),
            ("policy", "1", "clipped surrogate"),
            ("kl", "1", "divergence from the reference policy, before its weight"),
            ("entropy", "nat", "mean token entropy of the policy"),
            ("clip_frac", "frac", "tokens held by the clip"),
            ("dual_clip_frac", "frac", "tokens held by the dual clip"),
            ("ratio_mean", "1", "mean importance ratio"),
        ),
    ),
    *_declare(
        "sync",
        (
            ("send_s", "s", "from the first bucket to the last one received"),
            ("commit_s", "s", "loading, clearing caches and the engines' confirmation"),
            ("bytes", "bytes", "weights sent to one engine"),
            ("engines_failed", "engines", "fenced because they lack the new weights"),
            ("logprob_diff_max", "nat", "largest gap between sampler and trainer, same tokens"),
            ("logprob_diff_mean", "nat", "mean gap between sampler and trainer, same tokens"),
        ),
    ),
    *_declare(
        "optim",
        (
            ("lr", "1", "learning rate"),
            ("grad_norm", "1", "gradient norm before clipping"),
            ("skipped", "1", "1 where the step had no data to train on"),
        ),
    ),
    *_declare(
        "time",
        (
            ("step_s", "s", "the whole step"),
            ("rollout_s", "s", "sampling, with refills"),
            ("judge_s", "s", "verdicts"),
            ("embed_s", "s", "embedding the reasoning"),
            ("encode_s", "s", "waiting for prompts in the trainer's form"),
            ("score_s", "s", "groups, rewards and advantages"),
            ("update_s", "s", "forward, backward and optimiser"),
            ("sync_s", "s", "weight broadcast"),
            ("eval_s", "s", "evaluation"),
            ("checkpoint_s", "s", "checkpoint written just before the step"),
            ("other_frac", "frac", "step outside sampling, forward, backward and optimiser"),
        ),
    ),
    *_declare(
        "rollout",
        (
            ("tokens_per_s", "tokens/s", "sampled tokens over the pool"),
            ("stale_refused", "cohorts", "refused for their policy version"),
            ("retried", "cohorts", "sampled again after a failure"),
            ("engine_failures", "1", "engines that failed or were late"),
            ("resynced", "engines", "given the weights again"),
        ),
    ),
    *_declare(
        "embed",
        (
            ("cache_hit_frac", "frac", "texts whose embedding was known"),
            ("fallbacks", "cohorts", "left in one group because embedding failed"),
        ),
    ),
    *_declare(
        "data",
        (
            ("dropped", "rows", "rows left out so far as unusable"),
            ("position", "prompts", "place in the endless sequence of prompts"),
        ),
    ),
    *_declare(
        "eval",
        (
            ("<set>/acc@1", "frac", "greedy accuracy"),
            ("<set>/acc@1_sampled", "frac", "mean accuracy of samples at temperature 1"),
            ("<set>/acc@4", "frac", "questions with a right one among four samples"),
            ("<set>/pass@<k>", "frac", "unbiased chance of a right one among k samples"),
            ("<set>/diversity", "1", "pairwise diversity of the samples' reasoning"),
            ("<set>/effective_strategies", "strategies", "effective number of strategies"),
            ("<set>/length", "tokens", "mean length of a response"),
            ("<set>/truncated_frac", "frac", "responses ended by the token limit"),
            ("<set>/format", "frac", "responses of the asked-for shape"),
            ("<set>/questions", "1", "questions asked"),
        ),
    ),
    *_declare(
        "collapse",
        (
            ("diversity_ratio", "1", "diversity of the evaluation over that of step 0"),
            ("strategies_ratio", "1", "effective strategies beyond the first over step 0's"),
            ("alarm", "1", "1 where one of the two is below its share"),
            ("weight_factor", "1", "what the diversity weight is multiplied by from here on"),
        ),
    ),
)


def _pattern(key: str) -> str:
    parts = re.split("(<[a-z]+>)", key)
    return "".join(
        f"(?:{_PLACEHOLDERS[part]})" if part in _PLACEHOLDERS else re.escape(part) for part in parts
    )


_PLAIN = {metric.key: metric for metric in METRICS if "<" not in metric.key}
_PATTERNS = [(re.compile(_pattern(m.key)), m) for m in METRICS if "<" in m.key]


@lru_cache(maxsize=4096)
def check(key: str, own: tuple[Metric, ...] = ()) -> Metric:
    """The declaration of a key.

    Args:
        key: of a metric.
        own: metrics of the run's method, where that is none of the package's.

    Raises:
        ValueError: the key is not declared; the message names the nearest that is.
    """
    if metric := _PLAIN.get(key):
        return metric
    for metric in own:
        if metric.key == key:
            return metric
    for pattern, metric in _PATTERNS:
        if pattern.fullmatch(key):
            return metric
    near = difflib.get_close_matches(key, [metric.key for metric in METRICS], n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"metric key {key!r} is not declared in {__name__}, nor by the method{hint}")
