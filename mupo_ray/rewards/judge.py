"""A response's text and its gold answer in, a `Verdict` with a named reason out."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from mupo_ray.rewards import extract, notation
from mupo_ray.rewards.grader import Grader, default_grader
from mupo_ray.rewards.verify import NeedsAlgebraError, algebra_within, compare, no_algebra
from mupo_ray.types import Reason, Verdict

_BOX = "\\boxed{"


def judge(
    text: str,
    gold: str | None,
    *,
    is_think_opened: bool = False,
    grader: Grader | None = None,
) -> Verdict:
    r"""Judge one response.

    Args:
        text: the whole response, special tokens left out.
        gold: the right answer; one `\boxed{...}` or pair of dollars around it is taken off. Empty
            or None never earns a reward.
        is_think_opened: the rendered prompt ends with `<think>`, so the response need not open it.
        grader: where algebra is done; None takes this process's own. Its `limit_s` bounds the time
            one response can take, whatever its text.

    Raises:
        RewardError: the grader cannot start.
    """
    return judge_many([text], [gold], is_think_opened=is_think_opened, grader=grader)[0]


def judge_many(
    texts: Sequence[str],
    golds: Sequence[str | None],
    *,
    is_think_opened: bool = False,
    grader: Grader | None = None,
) -> list[Verdict]:
    """Judge responses, in order; equal pairs of answer and gold are compared once.

    One that runs out of its limit gets `Reason.TIMEOUT` and leaves the others as they are.

    Args:
        texts: whole responses.
        golds: the right answer to each.
        is_think_opened: as in `judge`.
        grader: as in `judge`.

    Raises:
        ValueError: lengths differ.
        RewardError: the grader cannot start.
    """
    if len(texts) != len(golds):
        raise ValueError(f"need one gold answer a text, got {len(texts)} texts, {len(golds)} golds")
    if is_think_opened:
        texts = ["<think>" + text for text in texts]
    cleaned = {gold: clean_gold(gold) for gold in set(golds)}
    answers = [extract.extract_answer(text) for text in texts]
    pairs = {
        (answer, gold)
        for answer, gold in zip(answers, (cleaned[gold] for gold in golds), strict=True)
        if answer is not None and gold is not None
    }
    reasons = _compare_all(sorted(pairs), grader)
    verdicts = []
    for text, answer, raw_gold in zip(texts, answers, golds, strict=True):
        gold = cleaned[raw_gold]
        if gold is None:
            reason = Reason.BAD_GOLD
        elif answer is None:
            reason = Reason.NO_ANSWER
        else:
            reason = reasons[answer, gold]
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
    return text if notation.normalise(text) else None


def _compare_all(
    pairs: list[tuple[str, str]], grader: Grader | None
) -> dict[tuple[str, str], Reason]:
    """Cheap pairs here and now; the rest side by side in the grader's workers."""
    reasons: dict[tuple[str, str], Reason] = {}
    for pair in pairs:
        try:
            reasons[pair] = compare(*pair, no_algebra)
        except NeedsAlgebraError:
            continue
    rest = [pair for pair in pairs if pair not in reasons]
    if not rest:
        return reasons
    shared = grader or default_grader()

    def compare_slowly(pair: tuple[str, str]) -> Reason:
        return compare(*pair, algebra_within(shared))

    if len(rest) == 1:
        reasons[rest[0]] = compare_slowly(rest[0])
        return reasons
    with ThreadPoolExecutor(min(shared.num_workers, len(rest))) as threads:
        reasons.update(zip(rest, threads.map(compare_slowly, rest), strict=True))
    return reasons
