"""Problems of an evaluation as a person reads them: which, and the card of each.

choose -> problems of a set by rule -> make_cards -> picture, maps on one scale, responses
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mupo_ray.core.diversity import pairwise_diversity
from mupo_ray.core.grouping import partition
from mupo_ray.report.maps import centres, plane, reach, spread
from mupo_ray.report.page import ListedResponse

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from mupo_ray.evaluation.samples import EvaluatedProblem, JudgedResponse
    from mupo_ray.report.maps import Floats, Plane
    from mupo_ray.report.pictures import Picture, Pictures

# Colours of groups that the page's style has; a seventh group takes the first again.
_NUM_GROUP_COLOURS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A problem to show, with the answers of each model that has any."""

    key: str
    """Begins the ids of the problem's elements."""
    why: str
    """Plain text: the rule that chose it."""
    answers: dict[str, EvaluatedProblem]
    """Model -> its answers, in the report's order of models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    """How a problem's responses are put into groups for reading."""

    num_groups: int = 3
    """K."""
    min_group_size: int = 3
    """Fewest responses in a group; with too few responses for K such groups, K is lower."""

    def of(self, embeddings: np.ndarray) -> np.ndarray:
        """[N] group of each response, larger groups first."""
        fitting = max(1, min(self.num_groups, len(embeddings) // self.min_group_size))
        return partition(embeddings, fitting, min(self.min_group_size, len(embeddings)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One response on a map."""

    number: int
    group: int
    colour: str
    response: JudgedResponse
    target: str
    """Id of the response on the page, which the mark links to."""
    place: Floats
    """[2] in units of the map."""
    middle: Floats
    """[2] of its group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Responses that reason alike, equal ones listed once."""

    number: int
    colour: str
    num_responses: int
    num_right: int
    listed: list[ListedResponse]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredCohort:
    """The responses of one model to one problem."""

    key: str
    model: str
    answered: EvaluatedProblem
    num_different: int
    num_listed: int
    greedy: ListedResponse | None
    has_groups: bool
    groups: list[Group]
    """Those with a listed response."""
    marks: list[Mark]
    """Empty without a map."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What a page says of a problem."""

    key: str
    why: str
    problem: EvaluatedProblem
    pictures: list[Picture]
    cohorts: list[AnsweredCohort]
    variance_frac: float | None
    """Of the responses, shown by the plane of the maps; None without maps."""
    differ_in_width: bool
    """The models' embeddings share no plane."""


def choose(
    by_model: Mapping[str, Sequence[EvaluatedProblem]], num_each: int
) -> list[tuple[str, dict[str, EvaluatedProblem]]]:
    """Problems of a set to show: the most divergent, the worst, and the first ones.

    Args:
        by_model: model -> its problems of the set.
        num_each: problems by each rule; one that several rules choose counts for the first.

    Returns:
        Why, and the answers of each model.
    """
    answers: dict[str, dict[str, EvaluatedProblem]] = {}
    for model, problems in by_model.items():
        for problem in problems:
            if problem.samples:
                answers.setdefault(problem.prompt_id, {})[model] = problem
    ids = sorted(answers, key=lambda i: (next(iter(answers[i].values())).position, i))
    diversity = {i: _mean(map(_diversity, answers[i].values())) for i in ids}
    right = {i: _mean(p.num_correct / len(p.samples) for p in answers[i].values()) for i in ids}
    divergent = [i for i in ids if diversity[i] > 0.0]
    rules = (
        ("most divergent", sorted(divergent, key=lambda i: -diversity[i])),
        ("fewest right", sorted(ids, key=lambda i: right[i])),
        ("first of the set", ids),
    )
    taken: dict[str, str] = {}
    for why, order in rules:
        for i in [i for i in order if i not in taken][:num_each]:
            taken[i] = why
    return [(why, answers[i]) for i, why in taken.items()]


def make_cards(
    chosen: Sequence[Chosen],
    pictures: Mapping[str, Pictures],
    grouping: Grouping,
    max_listed: int,
) -> dict[str, Card]:
    """The card of each problem by its key; all maps have one scale.

    Args:
        chosen: every problem that the page has a card of.
        pictures: set -> where its pictures are.
        grouping: of the responses.
        max_listed: different responses of a model to a problem that are listed.
    """
    planes = {item.key: _plane(item.answers.values()) for item in chosen}
    extent = max((reach(p.places) for p in planes.values() if p is not None), default=0.0)
    cards = {}
    for item in chosen:
        flat, start, cohorts = planes[item.key], 0, []
        for number, (model, answered) in enumerate(item.answers.items()):
            places = None
            if flat is not None and answered.embeddings is not None:
                stop = start + len(answered.samples)
                places, start = spread(flat.places[start:stop], extent), stop
            key = f"{item.key}-{number}"
            cohorts.append(_cohort(key, model, answered, places, grouping, max_listed))
        problem = next(iter(item.answers.values()))
        cards[item.key] = Card(
            key=item.key,
            why=item.why,
            problem=problem,
            pictures=pictures[problem.set_name].of(problem.position, problem.image_sha256),
            cohorts=cohorts,
            variance_frac=None if flat is None else flat.variance_frac,
            differ_in_width=len({_width(p) for p in item.answers.values()} - {None}) > 1,
        )
    return cards


def _cohort(
    key: str,
    model: str,
    answered: EvaluatedProblem,
    places: Floats | None,
    grouping: Grouping,
    max_listed: int,
) -> AnsweredCohort:
    """A model's part of a card; places on the map by sample."""
    samples, vectors = answered.samples, answered.embeddings
    has_groups = vectors is not None and len(vectors) > 1
    group_ids = np.zeros(len(samples), np.int64)
    if vectors is not None and has_groups:
        group_ids = grouping.of(vectors)
    equal = _equal_ones(samples, group_ids)
    # Every group has its turn before any has its next.
    ranked = sorted((rank, g) for g, sets in equal.items() for rank in range(len(sets)))
    listed = ranked[:max_listed]
    groups = []
    targets: dict[int, str] = {}
    for group_id, sets in equal.items():
        kept = [members for r, members in enumerate(sets) if (r, group_id) in listed]
        targets |= {i: f"{key}-{members[0]}" for members in kept for i in members}
        ids = [i for members in sets for i in members]
        group = Group(
            number=group_id + 1,
            colour=_colour(group_id),
            num_responses=len(ids),
            num_right=sum(samples[i].is_correct for i in ids),
            listed=[_listed(samples[m[0]], len(m), f"{key}-{m[0]}") for m in kept],
        )
        groups += [group] if kept else []
    order = [i for sets in equal.values() for members in sets for i in members]
    middles = None if places is None else centres(places, group_ids)
    return AnsweredCohort(
        key=key,
        model=model,
        answered=answered,
        num_different=len(ranked),
        num_listed=len(listed),
        greedy=None if answered.greedy is None else _listed(answered.greedy),
        has_groups=has_groups,
        groups=groups,
        marks=[
            Mark(
                number=i + 1,
                group=int(group_ids[i]) + 1,
                colour=_colour(int(group_ids[i])),
                response=samples[i],
                target=targets.get(i, key),
                place=places[i],
                middle=middles[i],
            )
            for i in order
            if places is not None and middles is not None
        ],
    )


def _equal_ones(
    samples: Sequence[JudgedResponse], group_ids: np.ndarray
) -> dict[int, list[list[int]]]:
    """Group -> sets of responses that are alike to a reader, the largest first."""
    alike: dict[tuple[int, Hashable], list[int]] = {}
    for i, response in enumerate(samples):
        face = response.text.strip(), response.reason, response.extracted, response.accuracy
        alike.setdefault((int(group_ids[i]), face), []).append(i)
    equal: dict[int, list[list[int]]] = {}
    for (group_id, _), members in sorted(
        alike.items(), key=lambda item: (item[0][0], -len(item[1]), item[1][0])
    ):
        equal.setdefault(group_id, []).append(members)
    return equal


def _listed(response: JudgedResponse, times: int = 1, anchor: str = "") -> ListedResponse:
    cut = ["cut at the token limit"] if response.is_truncated else []
    return ListedResponse(
        text=response.text,
        reason=response.reason,
        is_right=response.is_correct,
        extracted=response.extracted,
        notes=[f"{response.num_tokens} tokens", *cut],
        times=times,
        anchor=anchor,
    )


def _colour(group_id: int) -> str:
    return f"g{group_id % _NUM_GROUP_COLOURS}"


def _plane(answers: Iterable[EvaluatedProblem]) -> Plane | None:
    """One plane for all models' responses; None where there is nothing to draw."""
    drawn = [p for p in answers if _width(p) is not None]
    if len({_width(p) for p in drawn}) != 1:
        return None
    return plane(np.concatenate([p.embeddings for p in drawn if p.embeddings is not None]))


def _width(problem: EvaluatedProblem) -> int | None:
    """D of the problem's embeddings; None without any."""
    vectors = problem.embeddings
    return None if vectors is None or not len(vectors) else int(vectors.shape[1])


def _diversity(problem: EvaluatedProblem) -> float:
    return 0.0 if problem.embeddings is None else pairwise_diversity(problem.embeddings)


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))
