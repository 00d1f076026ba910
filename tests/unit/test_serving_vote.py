"""Groups and votes of served responses, on cases worked out by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest

from mupo_ray.config import Config
from mupo_ray.methods.mupo import Mupo, MupoConfig
from mupo_ray.serving.vote import VoteOutcome, group_and_vote
from mupo_ray.settings.sections import RunConfig
from mupo_ray.types import Cohort, FinishReason, Prompt, Reason, Response, Verdict

# Unit rows; the cosine of two is the product of their coordinates.
EAST, NORTH, WEST = [1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]
SLANT = [0.6, 0.8]


def vote(answers: list[str | None], embeddings: list[list[float]], **options) -> VoteOutcome:
    settings = {"num_groups": 2, "min_group_size": 1, "seed": 0, **options}
    return group_and_vote(
        texts=[f"text {i}" for i in range(len(answers))],
        embeddings=embeddings,
        answers=answers,
        **settings,
    )


def test_groups_by_hand() -> None:
    # East three times, slant twice: one group each; cos(east, slant) = .6, so all distances are .4.
    found = vote(["5", "7", "5", "7", "3"], [EAST, SLANT, EAST, SLANT, EAST])
    assert [r.group for r in found.responses] == [0, 1, 0, 1, 0]
    assert [g.size for g in found.groups] == [3, 2]
    assert [g.representative for g in found.groups] == [0, 1]
    assert [g.distance for g in found.groups] == pytest.approx([0.4, 0.4])
    assert [r.distance for r in found.responses] == pytest.approx([0.4] * 5)
    assert [(g.answer, g.votes) for g in found.groups] == [("5", 2), ("7", 2)]
    assert found.note is None


def test_distances_differ_within_a_group() -> None:
    # Groups {east, slant} and {west, west}: east is 1 - (-1) = 2 away, slant 1 - (-.6) = 1.6, and
    # each west (2 + 1.6) / 2.
    found = vote([None] * 4, [EAST, SLANT, WEST, WEST])
    east, slant, *wests = found.responses
    assert east.group == slant.group != wests[0].group == wests[1].group
    assert [r.distance for r in found.responses] == pytest.approx([2.0, 1.6, 1.8, 1.8])
    assert [g.distance for g in found.groups] == pytest.approx([1.8, 1.8])


def test_representative_is_the_nearest_to_the_mean() -> None:
    # Mean of the first three is (.8, .6): (.8, .6) itself is nearest.
    rows = [EAST, [0.6, 0.8], [0.8, 0.6], [0.8, 0.6], WEST, WEST]
    found = vote(["1"] * 6, rows)
    assert [g.representative for g in found.groups] == [2, 4]
    # Of two, both are as near: the first.
    assert vote(["1"] * 3, [WEST, SLANT, EAST]).groups[0].representative == 1


def test_equal_values_are_one_vote() -> None:
    answers = ["3", "0.5", r"\frac{1}{2}", "3", "1/2", "x+1"]
    found = vote(answers, [EAST] * 6, num_groups=1)
    # Three halves in three spellings: the first of them is shown.
    majority = found.votes.majority
    assert (majority.answer, majority.count, majority.share) == ("0.5", 3, 0.5)
    assert [r.vote for r in found.responses] == ["3", "0.5", "0.5", "3", "0.5", "x+1"]
    assert [r.extracted for r in found.responses] == answers


def test_majority_over_groups_overrules_the_crowd() -> None:
    # Four east say 4, two north and two west say 6: by responses 4 and 4, by groups 1 and 2.
    answers = ["4", "4", "4", "4", "6", "6", "6", "6"]
    rows = [EAST] * 4 + [NORTH] * 2 + [WEST] * 2
    votes = vote(answers, rows, num_groups=3).votes
    assert (votes.majority.answer, votes.majority.count, votes.majority.share) == ("4", 4, 0.5)
    assert (votes.group_majority.answer, votes.group_majority.count) == ("6", 2)
    assert votes.group_majority.share == pytest.approx(2 / 3)
    assert votes.best_of_n is None


def test_ties_between_groups() -> None:
    # A group each: the larger one's answer.
    found = vote(["1", "1", "2", "2", "2"], [EAST] * 2 + [WEST] * 3)
    assert found.votes.group_majority.answer == "2"
    # Both hold four: three responses say 2, and two say 1.
    found = vote(["1", "1", "3", "3", "2", "2", "2", "4"], [EAST] * 4 + [WEST] * 4)
    assert [g.answer for g in found.groups] == ["1", "2"]
    assert found.votes.group_majority.answer == "2"
    # Everything ties: the one given first.
    found = vote(["9", "8", "9", "8"], [EAST, WEST, EAST, WEST])
    assert found.votes.group_majority.answer == "9"
    assert found.votes.majority.answer == "9"
    # An answer that many give but no group's majority has cannot win there.
    rows = [EAST] * 5 + [NORTH] * 5 + [WEST] * 5
    answers = [*["a"] * 3, *["x"] * 2, *["b"] * 3, *["x"] * 2, *["c"] * 3, *["x"] * 2]
    found = vote(answers, rows, num_groups=3)
    assert found.votes.majority.answer == "x" and found.votes.majority.count == 6
    assert (found.votes.group_majority.answer, found.votes.group_majority.count) == ("a", 1)


def test_who_has_no_answer_does_not_vote() -> None:
    answers = [None, None, "$ $", "9" * 1001, "7"]
    found = vote(answers, [EAST] * 4 + [WEST])
    assert (found.votes.majority.answer, found.votes.majority.count) == ("7", 1)
    assert found.votes.majority.share == pytest.approx(0.2)
    assert [r.vote for r in found.responses] == [None] * 4 + ["7"]
    assert [(g.size, g.answer, g.votes) for g in found.groups] == [(4, None, 0), (1, "7", 1)]
    assert (found.votes.group_majority.count, found.votes.group_majority.share) == (1, 0.5)
    nobody = vote([None, None], [EAST, WEST]).votes
    for outcome in (nobody.majority, nobody.group_majority):
        assert (outcome.answer, outcome.count, outcome.share) == (None, 0, 0.0)


def test_letter_and_text_of_an_option_are_one_vote() -> None:
    answers = ["C", "12 cm", "(b)", "C", "B. 12 cm"]
    options = {"A": "9 cm", "B": "12 cm", "C": "x+1"}
    found = vote(answers, [EAST] * 5, num_groups=1, options=options).votes.majority
    assert (found.answer, found.count) == ("12 cm", 3)
    apart = vote(answers, [EAST] * 5, num_groups=1).votes.majority
    assert (apart.answer, apart.count) == ("C", 2)


def test_best_of_n_is_the_first_of_the_best() -> None:
    found = vote(["1", "2", None, "2"], [EAST] * 4, scores=[0.1, 0.9, 0.3, 0.9]).votes.best_of_n
    assert found is not None
    assert (found.answer, found.index, found.score) == ("2", 1, 0.9)


@pytest.mark.parametrize(
    ("size", "num_found", "note"),
    [
        (0, 0, "0 responses make 0 of 3 groups: a group has at least 2"),
        (1, 1, "1 responses make 1 of 3 groups: a group has at least 2"),
        (3, 1, "3 responses make 1 of 3 groups: a group has at least 2"),
        (5, 2, "5 responses make 2 of 3 groups: a group has at least 2"),
        (6, 3, None),
    ],
)
def test_too_few_responses_make_fewer_groups(size: int, num_found: int, note: str | None) -> None:
    rows = [EAST, WEST, NORTH, SLANT, EAST, NORTH][:size]
    found = vote(["1"] * size, rows, num_groups=3, min_group_size=2)
    assert len(found.groups) == num_found and found.note == note
    assert sum(g.size for g in found.groups) == size
    if num_found == 1:
        assert found.groups[0].distance == 0.0


@pytest.mark.parametrize("size", [6, 12, 20])
def test_groups_are_those_of_training(size: int) -> None:
    rng = np.random.default_rng(size)
    rows = rng.normal(size=(size, 8)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    settings = MupoConfig(num_groups=3, min_group_size=2)
    method = Mupo(settings, Config(run=RunConfig(seed=7)))
    trained = method.score([cohort(size)], [rows], 0)[0]
    served = group_and_vote(
        texts=["text"] * size,
        embeddings=rows,
        answers=["1"] * size,
        num_groups=3,
        min_group_size=2,
        seed=7,
    )
    assert [r.group for r in served.responses] == trained.group_ids.tolist()
    # Every response is right, so its diversity reward is the weight times its distance.
    distances = np.array([r.distance for r in served.responses])
    rewarded = trained.reward_parts["diversity"] / method.diversity_weight(0)
    np.testing.assert_allclose(distances, rewarded, rtol=1e-12)


def cohort(size: int) -> Cohort:
    """Right answers to one prompt."""
    right = Verdict(accuracy=1.0, format=1.0, extracted="1", reason=Reason.RIGHT)
    response = Response(
        text="text",
        completion_ids=np.zeros(1, np.int64),
        sampler_logprobs=np.zeros(1, np.float32),
        finish_reason=FinishReason.STOP,
        policy_version=0,
        seed=0,
        engine=0,
    )
    return Cohort(
        prompt=Prompt(prompt_id="p", position=0, token_ids=(1,), question="?", answer="1"),
        responses=(response,) * size,
        verdicts=(right,) * size,
    )


def test_as_dict_is_json_with_the_documented_keys() -> None:
    found = json.loads(json.dumps(vote(["1", "2"], [EAST, WEST], scores=[1.0, 0.0]).as_dict()))
    assert set(found) == {"groups", "responses", "votes", "note"}
    east = next(g for g in found["groups"] if g["representative"] == 0)
    del east["group"]
    assert east == {
        "size": 1, "representative": 0, "distance": 2.0, "answer": "1", "votes": 1,
    }  # fmt: skip
    assert set(found["responses"][0]) == {
        *("index", "text", "group", "extracted", "vote", "distance")
    }
    assert found["votes"]["best_of_n"] == {"answer": "1", "index": 0, "score": 1.0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answers": ["1"]}, "2 texts, got 2 embeddings, 1 answers and no scores"),
        ({"embeddings": [EAST]}, "got 1 embeddings"),
        ({"scores": [1.0]}, "and 1 scores"),
        ({"scores": [1.0, float("nan")]}, "scores must be finite"),
        ({"num_groups": 0}, "at least 1, got 0 and 1"),
        ({"embeddings": [EAST, [0.0, float("inf")]]}, "embeddings must be finite"),
    ],
)
def test_what_cannot_be_grouped_is_refused(change: dict, message: str) -> None:
    given = {
        "texts": ["a", "b"], "embeddings": [EAST, WEST], "answers": ["1", "2"],
        "num_groups": 2, "min_group_size": 1, "seed": 0,
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        group_and_vote(**{**given, **change})
