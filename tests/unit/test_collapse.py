"""The collapse alarm, on curves of two numbers worked out by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from mupo_ray.config import Config
from mupo_ray.evaluation.collapse import CollapseWatch, Sighting
from mupo_ray.files import read_jsonl
from mupo_ray.methods import make_method
from mupo_ray.observability.tracker import JsonlTracker
from mupo_ray.runs.folder import STOP_FILE, early_stop, hash_of
from mupo_ray.settings.sections import CollapseConfig

# Half of it is 0.2; half of the strategies beyond the first is one of two, so 2 in all.
START = (0.4, 3.0)


def found(diversity: float, strategies: float) -> dict[str, float]:
    return {
        "eval/heldout/diversity": diversity,
        "eval/heldout/effective_strategies": strategies,
        "eval/heldout/acc@1": 0.5,
    }


def watch(start: tuple[float, float] | None = START, **settings: Any) -> CollapseWatch:
    made = CollapseWatch(CollapseConfig(**settings), "heldout")
    if start is not None:
        assert made.observe(0, found(*start)) == Sighting(metrics={})
    return made


def test_shares_are_of_step_0_and_of_the_strategies_beyond_the_first() -> None:
    seen = watch().observe(10, found(0.3, 2.5))
    assert seen.metrics == {
        "collapse/diversity_ratio": pytest.approx(0.75),
        "collapse/strategies_ratio": pytest.approx(0.75),
        "collapse/alarm": 0.0,
    }
    assert seen.warnings == ()


@pytest.mark.parametrize(
    ("diversity", "strategies", "alarm"),
    [(0.2, 2.0, 0.0), (0.19, 2.0, 1.0), (0.2, 1.9, 1.0), (0.0, 1.0, 1.0), (0.9, 8.0, 0.0)],
    ids=["at both limits", "diversity", "strategies", "one way", "grown"],
)
def test_either_one_below_its_limit_alarms(
    diversity: float, strategies: float, alarm: float
) -> None:
    assert watch().observe(10, found(diversity, strategies)).metrics["collapse/alarm"] == alarm


def test_a_fall_is_said_once_and_again_after_recovery() -> None:
    seen = watch()
    curve = {10: 0.3, 20: 0.1, 30: 0.05, 40: 0.25, 50: 0.16}
    sightings = {step: seen.observe(step, found(d, 3.0)) for step, d in curve.items()}
    assert {s: x.metrics["collapse/alarm"] for s, x in sightings.items()} == {
        10: 0,
        20: 1,
        30: 1,
        40: 0,
        50: 1,
    }
    assert {s: x.warnings for s, x in sightings.items() if x.warnings} == {
        20: ("collapse alarm at step 20: diversity at 0.25 of step 0's, below 0.5",),
        50: ("collapse alarm at step 50: diversity at 0.40 of step 0's, below 0.5",),
    }


def test_the_second_measure_to_fall_is_said_too() -> None:
    seen = watch()
    assert len(seen.observe(10, found(0.1, 3.0)).warnings) == 1
    (line,) = seen.observe(20, found(0.1, 1.2)).warnings
    assert line == (
        "collapse alarm at step 20: effective strategies beyond the first at 0.10 of step 0's, "
        "below 0.5"
    )


@pytest.mark.parametrize("values", [{}, found(math.nan, math.nan)], ids=["absent", "nan"])
def test_an_evaluation_without_diversity_changes_nothing(values: dict[str, float]) -> None:
    seen = watch(action="raise_diversity_weight")
    seen.observe(10, found(0.1, 1.1))
    assert seen.observe(20, values) == Sighting(metrics={})
    assert seen.weight_factor == 2.0
    assert len(seen.observe(30, found(0.1, 1.1)).warnings) == 1, "not a new fall, one more raise"


@pytest.mark.parametrize(
    "values",
    [{}, found(math.nan, math.nan), found(0.0, 1.0), {"eval/other/diversity": 0.4}],
    ids=["absent", "nan", "one way at step 0", "another set"],
)
def test_without_a_reference_the_alarm_is_off_and_says_so_once(values: dict[str, float]) -> None:
    seen = watch(None, action="stop")
    (line,) = seen.observe(0, values).warnings
    assert line.startswith("the collapse alarm is off: step 0 has no diversity of heldout")
    assert seen.observe(10, found(0.0, 1.0)) == Sighting(metrics={})
    assert seen.stop_reason is None


def test_a_share_of_0_is_off() -> None:
    # Rows of zeros only have 0 effective strategies, which is below the floor of 1.
    seen = watch(diversity_share=0.0, strategies_share=0.0, action="stop")
    assert seen.observe(10, found(0.0, 0.0)).metrics["collapse/alarm"] == 0.0
    assert seen.stop_reason is None


def test_stop_gives_the_reason_while_the_alarm_is_on() -> None:
    seen = watch(action="stop", strategies_share=0.8)
    assert seen.stop_reason is None
    seen.observe(10, found(0.1, 2.5))
    assert seen.stop_reason == (
        "collapse alarm: diversity at 0.25 of step 0's, below 0.5 and effective strategies beyond "
        "the first at 0.75 of step 0's, below 0.8; to go on, give it again with "
        "collapse.action=none"
    )
    assert watch().stop_reason is None
    quiet = watch()
    quiet.observe(10, found(0.0, 1.0))
    assert quiet.stop_reason is None, "action none"


def test_the_weight_is_raised_at_each_evaluation_below_up_to_its_maximum() -> None:
    seen = watch(action="raise_diversity_weight", weight_factor=3.0, max_weight_factor=10.0)
    curve = {10: 0.3, 20: 0.1, 30: 0.3, 40: 0.1, 50: 0.1, 60: 0.1}
    sightings = {step: seen.observe(step, found(d, 3.0)) for step, d in curve.items()}
    factors = [x.metrics["collapse/weight_factor"] for x in sightings.values()]
    assert factors == [1, 3, 3, 9, 10, 10]
    assert sightings[20].warnings[1] == (
        "diversity weight from step 20 on: 3 times its schedule, 1 times before"
    )
    assert [len(x.warnings) for x in sightings.values()] == [0, 2, 0, 2, 1, 0]


@pytest.mark.parametrize("action", ["none", "stop", "raise_diversity_weight"])
@pytest.mark.parametrize("cut", range(1, 7))
def test_a_resumed_watch_equals_an_unbroken_one(tmp_path: Path, action: str, cut: int) -> None:
    """Cut after any evaluation, through a real record with lines between the evaluations."""
    curve = [found(*START), *(found(d, 3.0) for d in (0.1, 0.3, 0.1)), {}, found(0.1, 1.1)]
    curve += [found(0.3, 3.0)]
    unbroken, whole = watch(None, action=action), []
    record = JsonlTracker(tmp_path / "metrics.jsonl")
    for i, values in enumerate(curve):
        seen = unbroken.observe(2 * i, values)
        whole.append((seen, unbroken.stop_reason, unbroken.weight_factor))
        if i < cut:
            record.log(2 * i, values | seen.metrics)
            record.log(2 * i + 1, {"loss/total": math.nan})

    resumed = watch(None, action=action)
    assert resumed.restore(read_jsonl(tmp_path / "metrics.jsonl")) == ()
    assert resumed.stop_reason == whole[cut - 1][1]
    for i in range(cut, len(curve)):
        seen = resumed.observe(2 * i, curve[i])
        assert (seen, resumed.stop_reason, resumed.weight_factor) == whole[i]


def test_a_resumed_run_without_step_0_says_that_the_alarm_is_off() -> None:
    seen = watch(None)
    (line,) = seen.restore([{"step": 1, "loss/total": 0.1}])
    assert "the collapse alarm is off" in line
    assert seen.observe(10, found(0.0, 1.0)) == Sighting(metrics={})
    assert watch(None).restore([]) == (), "a new run has yet to see step 0"


def test_the_factor_multiplies_the_schedule() -> None:
    mupo = make_method(config(collapse={"action": "raise_diversity_weight"}))
    mupo.observe({"collapse/weight_factor": 2.0}, 29)
    mupo.observe({"loss/total": 0.1}, 30)
    # Cosine from 0.4 to 0.1 over 60 steps: 0.25 half-way.
    assert mupo.metrics(30) == {"reward/diversity_weight": pytest.approx(0.5)}


def config(**sections: Any) -> Config:
    return Config.model_validate(sections)


def test_a_run_may_be_resumed_with_another_alarm_unless_it_decides_rewards() -> None:
    plain = hash_of(config())
    assert hash_of(config(collapse={"action": "stop", "diversity_share": 0.9})) == plain
    raising = {"action": "raise_diversity_weight"}
    raised = hash_of(config(collapse=raising))
    assert raised != plain
    assert hash_of(config(collapse={**raising, "weight_factor": 3.0})) != raised
    assert hash_of(config(collapse=raising, eval={"every_steps": 5})) != raised
    assert hash_of(config(collapse=raising, tracking={"project": "x"})) == raised


def test_why_a_run_ended_early_is_read_back(tmp_path: Path) -> None:
    assert early_stop(tmp_path) is None
    (tmp_path / STOP_FILE).write_text(json.dumps({"step": 20, "message": "collapse alarm: ..."}))
    assert early_stop(tmp_path) == "stopped at step 20: collapse alarm: ..."
