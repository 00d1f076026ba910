"""Several answers to one question as groups of reasoning, and the votes among them.

N = responses, D = embedding width, K = groups. The groups and distances are those that MUPO trains
with (arXiv:2604.00479, 4.2): the same embeddings give the same partition.

An answer's value votes, not its spelling (`evaluation/answers.py`): `0.5` and `1/2` are one. A
response without an answer, or with one too long to be read, votes for nothing; shares are of all
responses, those too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mupo_ray.core.diversity import distance_to_other_groups
from mupo_ray.core.grouping import partition
from mupo_ray.evaluation.answers import answer_key
from mupo_ray.rewards.equality.choices import Options, normalise_options
from mupo_ray.rewards.equality.compare import (
    MAX_CHARS,
    NeedsAlgebraError,
    compare,
    no_algebra,
)
from mupo_ray.types import Reason

# Distances to a centroid that differ by less are equal up to rounding: the earlier response wins.
_SAME_DISTANCE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningGroup:
    """Responses that reason alike."""

    group: int
    """Number from 0; larger groups first."""
    size: int
    representative: int
    """Index of the response nearest to the mean of the group's embeddings."""
    distance: float
    """Mean over the responses of their cosine distance to those of all other groups; 0 where there
    is no other."""
    answer: str | None
    """What most of its responses answer; None where none has an answer."""
    votes: int
    """Responses of the group that give this answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedResponse:
    """A response in its group."""

    index: int
    text: str
    group: int
    extracted: str | None
    vote: str | None
    """What it votes for, spelled as most of its voters do; None where it does not vote."""
    distance: float
    """Mean cosine distance to the responses of all other groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """The outcome of a vote."""

    answer: str | None
    """As most of its voters spell it; None where nobody voted."""
    count: int
    """Responses, or groups, that voted for it."""
    share: float
    """The count as a share of all responses, or of all groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BestOfN:
    """The response with the highest score."""

    answer: str | None
    index: int
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Votes:
    """Three ways to choose one answer."""

    majority: Vote
    """Each response has a vote; of answers that tie, the one given first."""
    group_majority: Vote
    """Each group has a vote, whatever its size, for its own majority. Of answers that tie, the one
    whose groups hold more responses, then the one that more responses give, then the first."""
    best_of_n: BestOfN | None
    """None where nothing was scored; of scores that tie, the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteOutcome:
    """The responses to one question, grouped, and what they vote for."""

    groups: tuple[ReasoningGroup, ...]
    responses: tuple[GroupedResponse, ...]
    votes: Votes
    note: str | None
    """Why there are fewer groups than asked for; None where there are as many."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON, with the keys that `/v1/strategies` returns."""
        fields = asdict(self)
        return {**fields, "groups": list(fields["groups"]), "responses": list(fields["responses"])}


def group_and_vote(
    *,
    texts: Sequence[str],
    embeddings: ArrayLike,
    answers: Sequence[str | None],
    num_groups: int,
    min_group_size: int,
    seed: int,
    scores: Sequence[float] | None = None,
    options: Mapping[str, str] | None = None,
) -> VoteOutcome:
    """Partition responses by their reasoning, and vote.

    With fewer than K * min_group_size responses there are as many groups as their number allows,
    at least one, and the result's note says so.

    Args:
        texts: [N] responses; none is an answer too, of no groups.
        embeddings: [N, D] of their reasoning, as the training embedder makes them.
        answers: [N] what each has in its box; None where it has none.
        num_groups: K asked for.
        min_group_size: fewest responses in a group.
        seed: of the partition, see `core.grouping.partition`.
        scores: [N] what a scorer says of each, higher is better; None leaves best-of-n out.
        options: of a multiple choice question, letter -> text: the letter and the text of an
            option are one answer.

    Raises:
        ValueError: lengths differ, K or min_group_size is below 1, or a number is not finite.
    """
    size = len(texts)
    rows = np.asarray(embeddings, np.float64)
    _check(size, rows, answers, num_groups, min_group_size, scores)
    num_formed = min(num_groups, max(1, size // min_group_size)) if size else 0
    group_ids, distances = np.zeros(size, np.int64), np.zeros(size)
    if size:
        group_ids = partition(rows, num_formed, min(min_group_size, size), seed)
        distances = distance_to_other_groups(rows, group_ids)
    keys = _keys(answers, normalise_options(options))
    members = [np.flatnonzero(group_ids == k) for k in range(num_formed)]
    groups, winners = [], []
    for k, places in enumerate(members):
        winner, count = _most_frequent([keys[i] for i in places])
        winners.append(winner)
        groups.append(
            ReasoningGroup(
                group=k,
                size=len(places),
                representative=int(places[_nearest_to_mean(rows[places])]),
                distance=float(distances[places].mean()),
                answer=_spelling(winner, [keys[i] for i in places], [answers[i] for i in places]),
                votes=count,
            )
        )
    return VoteOutcome(
        groups=tuple(groups),
        responses=tuple(
            GroupedResponse(
                index=i,
                text=texts[i],
                group=int(group_ids[i]),
                extracted=answers[i],
                vote=_spelling(keys[i], keys, answers),
                distance=float(distances[i]),
            )
            for i in range(size)
        ),
        votes=_votes(keys, answers, winners, [len(places) for places in members], scores),
        note=None
        if num_formed == num_groups
        else f"{size} responses make {num_formed} of {num_groups} groups: a group has at least "
        f"{min_group_size}",
    )


def _check(
    size: int,
    rows: NDArray[np.float64],
    answers: Sequence[str | None],
    num_groups: int,
    min_group_size: int,
    scores: Sequence[float] | None,
) -> None:
    if {len(rows), len(answers), size if scores is None else len(scores)} != {size}:
        raise ValueError(
            f"need an embedding, an answer and, if any, a score for each of {size} texts, got "
            f"{len(rows)} embeddings, {len(answers)} answers and "
            f"{'no' if scores is None else len(scores)} scores"
        )
    if num_groups < 1 or min_group_size < 1:
        raise ValueError(
            "num_groups and min_group_size must be at least 1, got "
            f"{num_groups} and {min_group_size}"
        )
    if scores is not None and not np.isfinite(np.asarray(scores, np.float64)).all():
        raise ValueError(f"scores must be finite, got {list(scores)}")


def _nearest_to_mean(rows: NDArray[np.float64]) -> int:
    gaps = np.linalg.norm(rows - rows.mean(0), axis=1)
    slack = _SAME_DISTANCE * max(1.0, float(np.abs(rows).max(initial=0.0)))
    return int(np.argmax(gaps <= gaps.min() + slack))


def _keys(answers: Sequence[str | None], options: Options) -> list[str | None]:
    """[N] the same text for answers that are one; None where there is no vote."""
    letters = {letter: _picks(letter, options) for letter, _ in options}
    keys: list[str | None] = []
    for answer in answers:
        if answer is None or len(answer) > MAX_CHARS:
            keys.append(None)
            continue
        picked = next((letter for letter, picks in letters.items() if picks(answer)), None)
        # No text becomes empty but by saying nothing: dollars, braces, spacing commands.
        keys.append(picked or answer_key(answer) or None)
    return keys


def _picks(letter: str, options: Options) -> Callable[[str], bool]:
    def is_picked(answer: str) -> bool:
        try:
            return compare(answer, letter, no_algebra, options) is Reason.RIGHT
        except NeedsAlgebraError:
            return False

    return is_picked


def _most_frequent(keys: Sequence[str | None]) -> tuple[str | None, int]:
    """The answer that most give, the earlier of those that tie, and how many give it."""
    counts = Counter(key for key in keys if key is not None)
    return counts.most_common(1)[0] if counts else (None, 0)


def _spelling(
    winner: str | None, keys: Sequence[str | None], answers: Sequence[str | None]
) -> str | None:
    if winner is None:
        return None
    return _most_frequent([a for a, key in zip(answers, keys, strict=True) if key == winner])[0]


def _votes(
    keys: Sequence[str | None],
    answers: Sequence[str | None],
    winners: Sequence[str | None],
    sizes: Sequence[int],
    scores: Sequence[float] | None,
) -> Votes:
    first, count = _most_frequent(keys)
    of_groups = Counter(winner for winner in winners if winner is not None)
    of_responses = Counter(key for key in keys if key is not None)
    sizes_behind = {
        winner: sum(size for size, other in zip(sizes, winners, strict=True) if other == winner)
        for winner in of_groups
    }
    # The dictionary of responses is in the order in which answers were first given.
    ranked = sorted(
        (key for key in of_responses if key in of_groups),
        key=lambda key: (-of_groups[key], -sizes_behind[key], -of_responses[key]),
    )
    chosen = ranked[0] if ranked else None
    best = None
    if scores is not None and len(scores):
        top = int(np.argmax(np.asarray(scores, np.float64)))
        best = BestOfN(answer=answers[top], index=top, score=float(scores[top]))
    return Votes(
        majority=_vote(first, count, len(keys), keys, answers),
        group_majority=_vote(
            chosen, 0 if chosen is None else of_groups[chosen], len(winners), keys, answers
        ),
        best_of_n=best,
    )


def _vote(
    winner: str | None,
    count: int,
    total: int,
    keys: Sequence[str | None],
    answers: Sequence[str | None],
) -> Vote:
    return Vote(
        answer=_spelling(winner, keys, answers), count=count, share=count / total if total else 0.0
    )
