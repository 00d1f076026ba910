"""A sweep of real runs: reused session, a pruned run, and a trial's stored config trained again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import optuna
import pytest
from cheap_trials import PASS_4, Silence
from optuna.trial import FrozenTrial

from mupo_ray.config import Config
from mupo_ray.errors import PlacementError
from mupo_ray.files import read_jsonl
from mupo_ray.settings.load import load_config
from mupo_ray.train.entry import early_stop
from mupo_ray.train.launch import run_training
from mupo_ray.train.session import Session
from mupo_ray.tune.spec import SweepConfig
from mupo_ray.tune.study import REASON, Sweep, open_sweep
from mupo_ray.tune.trainer import SessionTrainer
from mupo_ray.tune.worker import work

MakeConfig = Callable[..., Config]

SEARCH = {
    "method.min_group_size": {"type": "int", "low": 2, "high": 3},
    "method.num_groups": {
        "type": "int",
        "low": 1,
        "high": "rollout.num_generations // method.min_group_size",
    },
    "train.optimizer.lr": {"type": "float", "low": 1e-5, "high": 1e-3, "log": True},
}


@pytest.fixture(scope="module")
def trainer(ray_local: None) -> Iterator[SessionTrainer]:
    """One worker's trainer for all tests here, with a session that it opens itself."""
    running = SessionTrainer()
    yield running
    running.let_go()


@pytest.fixture(scope="module")
def sweep(trainer: SessionTrainer, make_config: MakeConfig) -> Sweep:
    """Three trials, each in the same session."""
    base = make_config("sweep", "train.num_steps=2")
    fields = {"name": "real", "search": SEARCH, "trials": 3, "sampler": {"name": "random"}}
    opened = open_sweep(SweepConfig.model_validate_json(json.dumps(fields)), base)
    work(opened, trainer, Silence())
    return opened


def test_trials_are_runs_of_one_session(sweep: Sweep, trainer: SessionTrainer) -> None:
    assert [t.state.name for t in sweep.trials] == ["COMPLETE"] * 3
    for trial in sweep.trials:
        rows = read_jsonl(sweep.run_dir(trial) / "metrics.jsonl")
        assert [row["step"] for row in rows] == [0, 1, 2]
        assert trial.value == rows[-1][PASS_4]
    assert trainer._session is not None
    assert trainer._session.is_alive


def test_a_stored_trial_trained_again_takes_the_same_course(sweep: Sweep, session: Session) -> None:
    folder = sweep.run_dir(sweep.trials[1])
    again = load_config([folder / "run.json"], ["run.name=again"])
    run_training(again, session=session)
    keys = ("loss/total", "optim/grad_norm", "reward/total/mean", PASS_4)
    for mine, theirs in zip(
        read_jsonl(again.run_dir / "metrics.jsonl"),
        read_jsonl(folder / "metrics.jsonl"),
        strict=True,
    ):
        assert [key in mine for key in keys] == [key in theirs for key in keys]
        for key in set(keys) & set(mine):
            assert mine[key] == pytest.approx(theirs[key], rel=1e-5, abs=1e-5), key


def test_a_pruned_run_really_stops(trainer: SessionTrainer, make_config: MakeConfig) -> None:
    base = make_config("pruned", "train.num_steps=40", "eval.every_steps=1")
    # Beside a trial that no other can match, whatever is sampled.
    fields = {
        "name": "pruned",
        "search": {"train.optimizer.lr": {"type": "float", "low": 1e-5, "high": 1e-3}},
        "baseline": False,
        "trials": 2,
        "objectives": [{"metric": "-time/step_s", "direction": "minimize"}],
        "pruner": {"name": "median", "startup_trials": 0, "warmup_steps": 1},
    }
    opened = open_sweep(SweepConfig.model_validate_json(json.dumps(fields)), base)
    opened.study.add_trial(better_than_any())
    work(opened, trainer, Silence())
    pruned = opened.trials[-1]
    assert pruned.state.name == "PRUNED"
    run_dir = opened.run_dir(pruned)
    assert len(read_jsonl(run_dir / "metrics.jsonl")) < 40
    told = early_stop(run_dir)
    assert told is not None
    assert "pruned (median)" in told
    assert pruned.user_attrs[REASON] == told


def better_than_any() -> FrozenTrial:
    return optuna.create_trial(value=-1e9, intermediate_values=dict.fromkeys(range(41), -1e9))


def test_a_plan_beyond_the_cluster_is_an_error_at_once(make_config: MakeConfig) -> None:
    config = make_config("huge", "train.num_workers=100")
    with pytest.raises(PlacementError, match="even with nothing else on it, the cluster cannot"):
        SessionTrainer().prepare(config, lambda: True)
