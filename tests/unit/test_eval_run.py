"""A whole evaluation with a sampler that answers by its seeds: what is asked, kept and written."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mupo_ray.data.chat import ChatRenderer
from mupo_ray.errors import CheckpointError, DataError, RolloutError
from mupo_ray.evaluation.contestants import Contestant
from mupo_ray.evaluation.evaluation import evaluate_sets
from mupo_ray.evaluation.results import EvalResults, SamplingSettings, load_results
from mupo_ray.evaluation.samples import EvaluatedProblem, load_problems
from mupo_ray.evaluation.sets import parse_set
from mupo_ray.evaluation.tables import results_table
from mupo_ray.rewards.algebra_pool import AlgebraPool
from mupo_ray.rewards.verdicts import Verifier
from mupo_ray.testing.samplers import ScriptedSampler

SAMPLING = SamplingSettings(num_samples=4, temperature=1.0, top_p=1.0, max_new_tokens=8, seed=0)


@pytest.fixture(scope="module")
def verifier() -> Iterator[Verifier]:
    with AlgebraPool() as pool:
        yield Verifier(algebra_pool=pool)


@pytest.fixture
def sets(tmp_path: Path) -> list[str]:
    """Two sets: six rows, of which one repeats another and one cannot be asked; three rows."""
    questions = ["q0", "q1", "q2", "q1", "", "q5"]
    rows = [
        {"problem": q, "answer": "1", "category": "even" if i % 2 == 0 else "odd"}
        for i, q in enumerate(questions)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "one.parquet")
    pq.write_table(
        pa.Table.from_pylist([{"problem": f"r{i}", "answer": "1"} for i in range(3)]),
        tmp_path / "two.parquet",
    )
    return [str(tmp_path / "one.parquet"), str(tmp_path / "two.parquet")]


class Evaluation:
    """Runs evaluations of one model into a folder, each with a sampler of its own."""

    def __init__(self, verifier: Verifier, out: Path) -> None:
        self.verifier = verifier
        self.out = out
        self.started = 0
        self.said = ""

    def __call__(
        self,
        sets: list[str],
        sampler: ScriptedSampler,
        *,
        model: str = "m",
        sampling: SamplingSettings = SAMPLING,
        **options: Any,
    ) -> EvalResults:
        @contextlib.contextmanager
        def start() -> Iterator[ScriptedSampler]:
            self.started += 1
            yield sampler

        contestant = Contestant(
            name="folder/of/model",
            depends_on={"model": model},
            renderer=ChatRenderer(template="{problem}", system_prompt=None),
            sampler=start,
            verifier=self.verifier,
            embedder=None,
        )
        stream = io.StringIO()
        try:
            return evaluate_sets(
                contestant, [parse_set(s) for s in sets], self.out, sampling=sampling,
                progress_to=stream, **options,
            )  # fmt: skip
        finally:
            self.said = stream.getvalue()

    def problems(self, name: str) -> list[EvaluatedProblem]:
        return load_problems(self.out / name / "samples.parquet")


@pytest.fixture
def evaluation(verifier: Verifier, tmp_path: Path) -> Evaluation:
    return Evaluation(verifier, tmp_path / "out")


def test_every_prompt_is_asked_once_and_every_row_answered(
    evaluation: Evaluation, sets: list[str]
) -> None:
    sampler = ScriptedSampler()
    results = evaluation(sets, sampler)
    # Four different questions and three, each greedily and four times.
    assert len(sampler.asked) == len(set(sampler.asked)) == 2 * 7
    assert sorted({n for _, n in sampler.asked}) == [1, 4]
    one = evaluation.problems("one")
    assert [p.position for p in one] == [0, 1, 2, 3, 5]
    assert one[1].prompt_id == one[3].prompt_id and one[1].samples == one[3].samples
    assert [p.category for p in one] == ["even", "odd", "even", "odd", "odd"]
    for p in [*one, *evaluation.problems("two")]:
        assert p.greedy is not None and len(p.samples) == 4
        assert [r.num_tokens for r in p.samples] == [3, 4, 5, 6]
        seeds = [int(r.text.split()[1].split("<")[0]) for r in p.samples]
        assert seeds == list(range(seeds[0], seeds[0] + 4))
        assert [r.is_correct for r in p.samples] == [seed % 2 == 1 for seed in seeds]
        assert p.num_correct == 2
    assert results.sets["one"].micro.num_problems == 5
    assert results.sets["one"].micro.pass_at_k[1].value == 0.5
    assert list(results.sets["one"].by_category) == ["even", "odd"]
    assert results.micro is not None and results.micro.num_problems == 8
    assert results.sets["two"].data == sets[1]
    assert evaluation.said == "sampling  40/40 responses" + evaluation.said[25:]


def test_the_files_of_an_evaluation(evaluation: Evaluation, sets: list[str]) -> None:
    results = evaluation(sets, ScriptedSampler())
    assert load_results(evaluation.out / "results.json") == results
    alone = load_results(evaluation.out / "two" / "results.json")
    assert alone.sets == {"two": results.sets["two"]} and alone.micro is None
    table = pd.read_csv(evaluation.out / "one" / "predictions.tsv", sep="\t", dtype=str)
    assert table["index"].tolist() == ["0", "1", "2", "3", "5"]
    greedy = [p.greedy for p in evaluation.problems("one")]
    assert table["prediction"].tolist() == [g.extracted for g in greedy if g]


def test_the_k_that_were_asked_for_are_shown_or_left_out(
    evaluation: Evaluation, sets: list[str]
) -> None:
    results = evaluation(sets[:1], ScriptedSampler(), ks=[3, 8])
    found = load_results(evaluation.out / "one" / "results.json").sets["one"].micro
    assert list(found.pass_at_k) == [1, 2, 3, 4]
    reasons = {item.measure: item.reason for item in found.left_out}
    assert reasons["pass@8"] == "needs 8 samples of every problem; the fewest are 4"
    assert "pass@3" not in reasons
    rows = {
        line.split()[0]: line.split()[1] for line in results_table(results, [3, 8]).split("\n")[1:]
    }
    # Two of four right: 1 - C(2, 3) / C(4, 3).
    assert [name for name in rows if "@" in name] == [
        *("acc@1", "acc@1_sampled", "pass@3", "pass@8", "majority@3", "majority@8")
    ]
    assert (rows["pass@3"], rows["pass@8"], rows["majority@8"]) == ("1.000", "-", "-")
    plain = results_table(results)
    assert [name for name in ("pass@2", "pass@3", "pass@4") if f"{name} " in plain] == [
        *("pass@2", "pass@4")
    ]


@pytest.mark.parametrize("answers", [0, 1, 5, 13])
def test_a_broken_evaluation_goes_on_where_it_was(
    verifier: Verifier, tmp_path: Path, sets: list[str], answers: int
) -> None:
    whole = Evaluation(verifier, tmp_path / "whole")
    whole(sets, ScriptedSampler())
    broken = Evaluation(verifier, tmp_path / "broken")
    with pytest.raises(RolloutError, match="no engine is left"):
        broken(sets, ScriptedSampler(fails_after=answers))
    assert not (broken.out / "results.json").exists()
    rest = ScriptedSampler()
    broken(sets, rest)
    assert len(rest.asked) == 14 - answers
    for name in ("one", "two"):
        assert broken.problems(name) == whole.problems(name)
        assert (broken.out / name / "predictions.tsv").read_bytes() == (
            whole.out / name / "predictions.tsv"
        ).read_bytes()


def test_nothing_is_started_where_nothing_is_missing(
    evaluation: Evaluation, sets: list[str]
) -> None:
    first = evaluation(sets, ScriptedSampler())
    sampler = ScriptedSampler()
    again = evaluation(sets, sampler)
    assert (sampler.asked, evaluation.started) == ([], 1)
    assert again.sets == first.sets


def test_more_rows_and_greedy_answers_can_be_added(evaluation: Evaluation, sets: list[str]) -> None:
    evaluation(sets[1:], ScriptedSampler(), limit=2, has_greedy=False)
    assert [p.greedy for p in evaluation.problems("two")] == [None, None]
    more = ScriptedSampler()
    evaluation(sets[1:], more, has_greedy=True)
    assert [n for _, n in more.asked] == [1, 1, 1, 4]
    assert [len(p.samples) for p in evaluation.problems("two")] == [4, 4, 4]


def test_greedy_answers_alone(evaluation: Evaluation, sets: list[str]) -> None:
    none = SamplingSettings(num_samples=0, temperature=1.0, top_p=1.0, max_new_tokens=8, seed=0)
    results = evaluation(sets[1:], ScriptedSampler(), sampling=none)
    assert [len(p.samples) for p in evaluation.problems("two")] == [0, 0, 0]
    assert "acc@1" in results.sets["two"].micro.measures


def test_what_is_begun_is_not_mixed(
    evaluation: Evaluation, sets: list[str], tmp_path: Path
) -> None:
    evaluation(sets[1:], ScriptedSampler())
    other = SamplingSettings(num_samples=4, temperature=0.5, top_p=1.0, max_new_tokens=8, seed=0)
    with pytest.raises(CheckpointError, match=r"\(temperature: 1.0 then, 0.5 now\)"):
        evaluation(sets[1:], ScriptedSampler(), sampling=other)
    with pytest.raises(CheckpointError, match=r"model: folder/of/model \(m\) then.*\(n\) now"):
        evaluation(sets[1:], ScriptedSampler(), model="n")
    pq.write_table(pa.table({"problem": ["changed"], "answer": ["1"]}), tmp_path / "two.parquet")
    with pytest.raises(CheckpointError, match=r"set: .*two.parquet \(.*then, .*two.parquet"):
        evaluation(sets[1:], ScriptedSampler())
    assert evaluation.started == 1


def test_a_set_of_which_nothing_can_be_asked(evaluation: Evaluation, tmp_path: Path) -> None:
    pq.write_table(pa.table({"problem": ["q", ""], "answer": ["", "1"]}), tmp_path / "e.parquet")
    with pytest.raises(
        DataError, match="set e: none of 2 rows can be asked: row 0: answer is empty"
    ):
        evaluation([str(tmp_path / "e.parquet")], ScriptedSampler())


def test_stored_responses_are_all_that_is_kept_of_sampling(
    evaluation: Evaluation, sets: list[str]
) -> None:
    evaluation(sets[1:], ScriptedSampler())
    lines = (evaluation.out / "two" / "responses.jsonl").read_text().splitlines()
    assert len(lines) == 1 + 2 * 3
    assert {frozenset(r) for line in lines[1:] for r in json.loads(line)["responses"]} == {
        frozenset({"text", "num_tokens", "is_truncated"})
    }
