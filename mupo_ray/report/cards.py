"""Problems of an evaluation as a person reads them: picture, map of the reasoning, responses."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mupo_ray.core.grouping import partition
from mupo_ray.report.maps import (
    NUM_GROUP_COLOURS,
    MapPoint,
    map_html,
    plane,
    reach,
    spread,
)
from mupo_ray.report.pictures import pictures_html
from mupo_ray.report.responses import answer_note, ask_html, clipped, response_html

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from mupo_ray.evaluation.samples import EvaluatedProblem, JudgedResponse
    from mupo_ray.report.choice import Shown
    from mupo_ray.report.maps import Plane
    from mupo_ray.report.pictures import Pictures

# Characters of a text that a mark of a map shows; the whole is in the list.
_MAX_TIP = 420


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


class ProblemCards:
    """Cards of problems whose maps all have one scale."""

    def __init__(
        self,
        shown: Sequence[Shown],
        pictures: Mapping[str, Pictures],
        grouping: Grouping,
        max_listed: int,
    ) -> None:
        """Lay out the maps.

        Args:
            shown: every problem that the page has a card of.
            pictures: set -> where its pictures are.
            grouping: of the responses.
            max_listed: different responses of a model to a problem that are listed.
        """
        self._pictures, self._grouping, self._max_listed = pictures, grouping, max_listed
        self._planes = {item.key: _plane(item.answers.values()) for item in shown}
        planes = [p for p in self._planes.values() if p is not None]
        self._extent = max((reach(p.places) for p in planes), default=0.0)

    def html(self, item: Shown, *, side_by_side: bool = False) -> str:
        """One card.

        Args:
            item: of those that the maps were laid out for.
            side_by_side: the models' responses stand beside each other and open.
        """
        problem, flat = item.problem, self._planes[item.key]
        category = "" if problem.category is None else f" Category {html.escape(problem.category)}."
        facts = (
            f"<p>Gold answer <b>{html.escape(problem.answer)}</b>.{category}</p>"
            f'<p class="why">{html.escape(problem.set_name)}, question {problem.position + 1}: '
            f"{html.escape(item.why)}</p>"
        )
        found = self._pictures[problem.set_name].of(problem.position, problem.image_sha256)
        ask = ask_html(pictures_html(found), problem.question, facts)
        is_open = side_by_side or len(item.answers) == 1
        maps, lists, start = [], [], 0
        for number, (model, answered) in enumerate(item.answers.items()):
            key = f"{item.key}-{number}"
            cohort = _Cohort(key, model, answered, self._grouping, self._max_listed)
            lists.append(cohort.list_html(is_open=is_open))
            if flat is not None and answered.embeddings is not None:
                stop = start + len(answered.samples)
                maps.append(cohort.map_html(spread(flat.places[start:stop], self._extent)))
                start = stop
        drawn, said = "", "".join(lists)
        if flat is not None:
            note = f"The plane shows {flat.variance_frac:.0%} of the variance of these responses."
            drawn = f'<div class="maps">{"".join(maps)}</div><p class="hint small">{note}</p>'
        elif len({_width(p) for p in item.answers.values()} - {None}) > 1:
            drawn = (
                '<p class="hint small">No map: the models were embedded at different widths.</p>'
            )
        body = drawn + said
        if side_by_side:
            body = f'{drawn}<div class="sides">{said}</div>'
        elif len(item.answers) == 1 and drawn:
            body = f'<div class="beside"><div>{drawn}</div>{said}</div>'
        return f'<article class="cohort problem" id="{item.key}">{ask}{body}</article>'


class _Cohort:
    """The responses of one model to one problem, equal ones of a group listed once."""

    def __init__(
        self,
        key: str,
        model: str,
        answered: EvaluatedProblem,
        grouping: Grouping,
        max_listed: int,
    ) -> None:
        self._key, self._model, self._answered = key, model, answered
        samples, vectors = answered.samples, answered.embeddings
        self._has_groups = vectors is not None and len(vectors) > 1
        self._groups = np.zeros(len(samples), np.int64)
        if vectors is not None and self._has_groups:
            self._groups = grouping.of(vectors)
        alike: dict[tuple[int, Hashable], list[int]] = {}
        for i, response in enumerate(samples):
            alike.setdefault((int(self._groups[i]), _face(response)), []).append(i)
        # Group -> sets of equal responses, the largest first.
        self._faces: dict[int, list[list[int]]] = {}
        for (group, _), members in sorted(
            alike.items(), key=lambda item: (item[0][0], -len(item[1]), item[1][0])
        ):
            self._faces.setdefault(group, []).append(members)
        # Every group has its turn before any has its next.
        ranked = [(r, g) for g, faces in self._faces.items() for r in range(len(faces))]
        self._listed = set(sorted(ranked)[:max_listed])
        self._num_faces = len(ranked)

    def map_html(self, places: np.ndarray) -> str:
        """The model's part of the problem's map; places by sample."""
        points: list[MapPoint] = []
        order: list[int] = []
        for group, faces in self._faces.items():
            for rank, members in enumerate(faces):
                is_listed = (rank, group) in self._listed
                target = self._anchor(members[0]) if is_listed else self._key
                points += [self._point(i, target) for i in members]
                order += members
        samples = self._answered.samples
        label = f"Map of the reasoning of {len(samples)} responses of {self._model}"
        return (
            f"<figure><h4>{html.escape(self._model)}: {self._answered.num_correct} of "
            f"{len(samples)} right</h4>{map_html(points, places[order], label)}</figure>"
        )

    def list_html(self, *, is_open: bool) -> str:
        """The model's responses by group."""
        parts = []
        for group, faces in self._faces.items():
            items = [
                self._item(members)
                for rank, members in enumerate(faces)
                if (rank, group) in self._listed
            ]
            if items:
                parts.append(f'{self._head(group)}<ul class="responses">{"".join(items)}</ul>')
        rest = self._num_faces - len(self._listed)
        if rest:
            parts.append(
                f'<p class="hint small">{rest} more different responses are not shown.</p>'
            )
        greedy = self._answered.greedy
        if greedy is not None:
            item = _response(greedy, [], anchor="")
            parts.insert(0, f'<h5>At temperature 0</h5><ul class="responses">{item}</ul>')
        summary = (
            f"{html.escape(self._model)}: {len(self._answered.samples)} samples, "
            f"{self._answered.num_correct} right, {self._num_faces} different"
        )
        return (
            f'<details id="{self._key}"{" open" if is_open else ""}><summary>{summary}</summary>'
            f"{''.join(parts)}</details>"
        )

    def _head(self, group: int) -> str:
        if not self._has_groups:
            return "<h5>Samples</h5>"
        members = [i for face in self._faces[group] for i in face]
        num_right = sum(self._answered.samples[i].is_correct for i in members)
        return (
            f'<h5 class="g{group % NUM_GROUP_COLOURS}"><i class="swatch"></i>Group {group + 1}: '
            f"{len(members)} responses, {num_right} right</h5>"
        )

    def _item(self, members: Sequence[int]) -> str:
        times = [f"<b>{len(members)} times this text</b>"] if len(members) > 1 else []
        first = members[0]
        return _response(self._answered.samples[first], times, anchor=self._anchor(first))

    def _point(self, index: int, target: str) -> MapPoint:
        response = self._answered.samples[index]
        group = int(self._groups[index])
        verdict = html.escape(response.reason.replace("_", " "))
        head = f"Group {group + 1} &middot; {verdict}"
        if response.extracted is not None:
            head += f" &middot; {answer_note(response.extracted)}"
        return MapPoint(
            group=group,
            is_right=response.is_correct,
            name=f"response {index + 1}, group {group + 1}, {verdict}",
            text=f"<b>{head}</b>{clipped(response.text.strip(), _MAX_TIP)}",
            target=target,
        )

    def _anchor(self, index: int) -> str:
        return f"{self._key}-{index}"


def _response(response: JudgedResponse, notes: Sequence[str], *, anchor: str) -> str:
    said = [*notes, f"{response.num_tokens} tokens"]
    if response.extracted is not None:
        said.insert(0, answer_note(response.extracted))
    if response.is_truncated:
        said.append("cut at the token limit")
    return response_html(
        response.text, response.reason, said, is_right=response.is_correct, anchor=anchor
    )


def _face(response: JudgedResponse) -> Hashable:
    """What makes two responses alike to a reader."""
    return response.text.strip(), response.reason, response.extracted, response.accuracy


def _width(problem: EvaluatedProblem) -> int | None:
    """D of the problem's embeddings; None without any."""
    vectors = problem.embeddings
    return None if vectors is None or not len(vectors) else int(vectors.shape[1])


def _plane(answers: Iterable[EvaluatedProblem]) -> Plane | None:
    """One plane for all models' responses; None where there is nothing to draw."""
    drawn = [p for p in answers if _width(p) is not None]
    if len({_width(p) for p in drawn}) != 1:
        return None
    return plane(np.concatenate([p.embeddings for p in drawn if p.embeddings is not None]))
