"""A response's text and its gold answer in, a `Verdict` with a named reason out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from mupo_ray.rewards import extract
from mupo_ray.rewards.algebra import NeedsAlgebraError, algebra_within, no_algebra
from mupo_ray.rewards.algebra_pool import Grader, default_grader
from mupo_ray.rewards.equality.choices import Options, normalise_options
from mupo_ray.rewards.equality.compare import compare
from mupo_ray.rewards.equality.spelling import normalise
from mupo_ray.types import Reason, Verdict

_BOX = "\\boxed{"

_Pair = tuple[str, str, Options]
"""Answer, gold and options: all that a comparison depends on."""


def judge(
    text: str,
    gold: str | None,
    *,
    options: Mapping[str, str] | None = None,
    is_think_opened: bool = False,
    grader: Grader | None = None,
) -> Verdict:
    r"""Judge one response.

    Args:
        text: the whole response, special tokens left out.
        gold: the right answer; one `\boxed{...}` or pair of dollars around it is taken off. Empty
            or None never earns a reward.
        options: of a multiple choice question: letter -> text.
        options: of a multiple choice question: letter -> text.
        is_think_opened: the rendered prompt ends with `<think>`, so the response need not open it.
        grader: where algebra is done; None takes this process's own. Its `limit_s` bounds the time
            one response can take, whatever its text.

    Raises:
        RewardError: the grader cannot start.
    """
    return judge_many([text], [gold], [options], is_think_opened=is_think_opened, grader=grader)[0]


def judge_many(
    texts: Sequence[str],
    golds: Sequence[str | None],
    options: Sequence[Mapping[str, str] | None] | None = None,
    *,
    is_think_opened: bool = False,
    grader: Grader | None = None,
) -> list[Verdict]:
    """Judge responses, in order; equal pairs of answer and gold are compared once.

    One that runs out of its limit gets `Reason.TIMEOUT` and leaves the others as they are.

    Args:
        texts: whole responses.
        golds: the right answer to each.
        options: of each question, as in `judge`; None where none has any.
        is_think_opened: as in `judge`.
        grader: as in `judge`.

    Raises:
        ValueError: lengths differ.
        RewardError: the grader cannot start.
    """
    if len(texts) != len(golds):
        raise ValueError(f"need one gold answer a text, got {len(texts)} texts, {len(golds)} golds")
    if options is not None and len(options) != len(texts):
        raise ValueError(f"need options a text, got {len(texts)} texts, {len(options)} options")
    if is_think_opened:
        texts = ["<think>" + text for text in texts]
    cleaned = {gold: clean_gold(gold) for gold in set(golds)}
    answers = [extract.extract_answer(text) for text in texts]
    choices = _normalise_all(options or [None] * len(texts))
    pairs = [
        (answer, gold, choice)
        for answer, raw, choice in zip(answers, golds, choices, strict=True)
        if answer is not None and (gold := cleaned[raw]) is not None
    ]
    reasons = _compare_all(list(dict.fromkeys(pairs)), grader)
    verdicts = []
    for text, answer, raw_gold, choice in zip(texts, answers, golds, choices, strict=True):
        gold = cleaned[raw_gold]
        if gold is None:
            reason = Reason.NO_GOLD
        elif answer is None:
            reason = Reason.NO_ANSWER
        else:
            reason = reasons[answer, gold, choice]
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


def _normalise_all(options: Sequence[Mapping[str, str] | None]) -> list[Options]:
    """The N responses to a prompt share one mapping, which is normalised once."""
    found: dict[int, Options] = {}
    for mapping in options:
        if id(mapping) not in found:
            found[id(mapping)] = normalise_options(mapping)
    return [found[id(mapping)] for mapping in options]


def _compare_all(pairs: list[_Pair], grader: Grader | None) -> dict[_Pair, Reason]:
    """Cheap pairs here and now; the rest side by side in the grader's workers."""
    reasons: dict[_Pair, Reason] = {}
    for pair in pairs:
        answer, gold, options = pair
        try:
            reasons[pair] = compare(answer, gold, no_algebra, options)
        except NeedsAlgebraError:
            continue
    rest = [pair for pair in pairs if pair not in reasons]
    if not rest:
        return reasons
    shared = grader or default_grader()

    def compare_slowly(pair: _Pair) -> Reason:
        answer, gold, options = pair
        return compare(answer, gold, algebra_within(shared), options)

    if len(rest) == 1:
        reasons[rest[0]] = compare_slowly(rest[0])
        return reasons
    with ThreadPoolExecutor(min(shared.num_workers, len(rest))) as threads:
        reasons.update(zip(rest, threads.map(compare_slowly, rest), strict=True))
    return reasons
