"""One worker of a sweep with cheap runs: values, pruning, failures, interruptions, identity."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cheap_trials import PASS_4, STEPS, CheapTrainer, Silence, accuracy, base, cheap_sweep
from optuna.trial import TrialState

from mupo_ray.config import Config, load_config
from mupo_ray.errors import SweepError, TrainingError
from mupo_ray.runs.folder import early_stop, load_resolved
from mupo_ray.tune.storage import held, is_held
from mupo_ray.tune.study import REASON, START_UP_S, WALL_S, Sweep, open_sweep
from mupo_ray.tune.worker import work


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mupo_ray.tune.worker._POLL_S", 0.01)


def run(folder: Path, trainer: CheapTrainer | None = None, **changes: Any) -> Sweep:
    sweep = open_sweep(cheap_sweep(**changes), base(folder))
    work(sweep, trainer or CheapTrainer(), Silence())
    return sweep


def test_every_trial_is_an_ordinary_run_with_the_baseline_first(tmp_path: Path) -> None:
    sweep = run(tmp_path)
    assert [t.state for t in sweep.trials] == [TrialState.COMPLETE] * 8
    assert sweep.trials[0].params == {
        "method.min_group_size": 3,
        "method.num_groups": 3,
        "train.optimizer.lr": 2e-4,
    }
    assert sweep.trials[0].value == pytest.approx(0.8)
    for trial in sweep.trials:
        config = load_resolved(sweep.run_dir(trial))
        place = {"run.name": str(trial.number), "run.storage_path": f"{sweep.folder}/trials"}
        assert config == sweep.space.config(trial.params | place)
        assert trial.value == pytest.approx(accuracy(config, STEPS))
        assert trial.params["method.num_groups"] * trial.params["method.min_group_size"] <= 12
        assert trial.intermediate_values == {s: accuracy(config, s) for s in range(1, STEPS + 1)}
        assert trial.user_attrs[START_UP_S] == pytest.approx(
            trial.user_attrs[WALL_S] - 0.007 * (STEPS + 1), abs=1e-9
        )


def test_a_sweep_given_again_adds_what_is_missing(tmp_path: Path) -> None:
    run(tmp_path, trials=3)
    trainer = CheapTrainer()
    sweep = run(tmp_path, trainer, trials=5)
    assert [c.run.name for c in trainer.trained] == ["3", "4"]
    assert len(sweep.trials) == 5


def test_the_stored_config_of_a_trial_is_a_config_file(tmp_path: Path) -> None:
    sweep = run(tmp_path, trials=2)
    folder = sweep.run_dir(sweep.trials[1])
    again = load_config([folder / "run.json"], ["run.name=again"])
    assert again == load_config([], ["run.name=again"], base=load_resolved(folder))


def test_a_trial_below_the_median_stops_early_and_says_why(tmp_path: Path) -> None:
    trainer = CheapTrainer(step_s=0.03)
    # Each trial is worse than the one before.
    trainer.value = lambda config, step: 1.0 / (1 + int(config.run.name))
    sweep = run(
        tmp_path, trainer, trials=4, pruner={"name": "median", "startup_trials": 2}, baseline=False
    )
    states = [t.state for t in sweep.trials]
    assert states == [TrialState.COMPLETE] * 2 + [TrialState.PRUNED] * 2
    pruned = sweep.trials[2]
    assert "pruned (median) at 0.3333" in pruned.user_attrs[REASON]
    assert pruned.user_attrs[REASON] == early_stop(sweep.run_dir(pruned))
    assert len((sweep.run_dir(pruned) / "metrics.jsonl").read_text().splitlines()) <= STEPS


def test_a_run_that_ends_itself_counts_as_pruned(tmp_path: Path) -> None:
    class Collapsing(CheapTrainer):
        def train(self, config: Config) -> None:
            super().train(config)
            if config.run.name == "1":
                record = {"step": 4, "message": "collapse alarm: diversity at 0.1"}
                (config.run_dir / "stopped.json").write_text(json.dumps(record))

    sweep = run(tmp_path, Collapsing(), trials=3)
    assert sweep.trials[1].state is TrialState.PRUNED
    assert (
        sweep.trials[1].user_attrs[REASON] == "stopped at step 4: collapse alarm: diversity at 0.1"
    )


def test_a_failed_run_is_not_fatal(tmp_path: Path) -> None:
    class Failing(CheapTrainer):
        def train(self, config: Config) -> None:
            if config.run.name in ("0", "2"):
                raise TrainingError("loss of optimizer step 1 is nan\nmore")
            super().train(config)

    sweep = run(tmp_path, Failing(), trials=4)
    assert [t.state.name for t in sweep.trials] == ["FAIL", "COMPLETE", "FAIL", "COMPLETE"]
    assert sweep.trials[2].user_attrs[REASON] == "loss of optimizer step 1 is nan"


def test_a_value_that_is_not_finite_fails_the_trial(tmp_path: Path) -> None:
    trainer = CheapTrainer()
    trainer.value = lambda config, step: None if config.run.name == "1" else 0.5
    sweep = run(tmp_path, trainer, trials=2)
    assert sweep.trials[1].state is TrialState.FAIL
    assert sweep.trials[1].user_attrs[REASON] == f"{PASS_4} is nan at the end of the run"


def test_no_trial_succeeded(tmp_path: Path) -> None:
    class Failing(CheapTrainer):
        def train(self, config: Config) -> None:
            raise TrainingError("the loss is nan")

    with pytest.raises(
        SweepError, match="no trial succeeded, of 3: trial 0, 1, 2: the loss is nan"
    ):
        run(tmp_path, Failing(), trials=8, max_failures=3)


def test_an_interrupted_trial_goes_on_from_its_run(tmp_path: Path) -> None:
    class Interrupted(CheapTrainer):
        def train(self, config: Config) -> None:
            if config.run.name == "2":
                self.value = self.stop_after_two
            super().train(config)

        def stop_after_two(self, config: Config, step: int) -> float:
            if step == 3:
                raise KeyboardInterrupt
            return accuracy(config, step)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, Interrupted(), trials=4)
    trainer = CheapTrainer()
    sweep = run(tmp_path, trainer, trials=4)
    assert [t.state.name for t in sweep.trials] == ["COMPLETE"] * 2 + ["FAIL"] + ["COMPLETE"] * 2
    resumed = sweep.trials[3]
    assert resumed.params == sweep.trials[2].params
    assert sweep.run_dir(resumed).name == "2"
    starts = (sweep.run_dir(resumed) / "starts.jsonl").read_text().splitlines()
    assert [json.loads(line)["from"] for line in starts] == [0, 3]
    assert [c.run.name for c in trainer.trained] == ["2", "4"]


def test_another_search_under_the_same_name_is_refused(tmp_path: Path) -> None:
    run(tmp_path, trials=1)
    with pytest.raises(
        SweepError,
        match=r"a study sweep of another search \(search\.train\.optimizer\.lr\.high: 0\.001 then, "
        r"0\.01 now\)",
    ):
        search = json.loads(cheap_sweep().model_dump_json())["search"]
        search["train.optimizer.lr"]["high"] = 0.01
        run(tmp_path, search=search)
    other = load_config([], ["data.prompts_per_step=4"], base=base(tmp_path))
    with pytest.raises(SweepError, match=r"data\.prompts_per_step: 16 then, 4 now"):
        open_sweep(cheap_sweep(), other)


def test_several_objectives_have_a_front(tmp_path: Path) -> None:
    trainer = CheapTrainer()
    sweep = run(
        tmp_path,
        trainer,
        trials=6,
        sampler={"name": "nsgaii", "population_size": 2},
        objectives=[{"metric": PASS_4}, {"metric": f"1 - {PASS_4}"}],
    )
    assert all(t.state is TrialState.COMPLETE for t in sweep.trials)
    for trial in sweep.trials:
        assert sum(trial.values) == pytest.approx(1.0)
    assert len(sweep.study.best_trials) == 6


@pytest.mark.parametrize("name", ["tpe", "gp", "random", "nsgaii"])
def test_samplers(tmp_path: Path, name: str) -> None:
    startup = {"startup_trials": 2} if name in ("tpe", "gp") else {}
    sweep = run(tmp_path, trials=4, sampler={"name": name, **startup})
    assert len({tuple(t.params.values()) for t in sweep.trials}) == 4


def test_a_grid_is_worked_through_once(tmp_path: Path) -> None:
    search = json.loads(cheap_sweep().model_dump_json())["search"]
    search["train.optimizer.lr"] = {"type": "categorical", "choices": [1e-4, 2e-4]}
    sweep = run(tmp_path, search=search, sampler={"name": "grid"}, trials=100)
    # min_group_size 2, 3 and 4 leave K up to 4, 4 and 3.
    assert len(sweep.trials) == 2 * (4 + 4 + 3)
    assert len({tuple(sorted(t.params.items())) for t in sweep.trials}) == 22
    assert sweep.trials[0].params["train.optimizer.lr"] == 2e-4


@pytest.mark.parametrize("name", ["median", "hyperband"])
def test_pruners(tmp_path: Path, name: str) -> None:
    sweep = run(tmp_path, pruner={"name": name})
    assert all(t.state.is_finished() for t in sweep.trials)


def test_d09_a_trial_left_running_by_optuna_itself_is_taken_up(tmp_path: Path) -> None:
    sweep = open_sweep(cheap_sweep(trials=3), base(tmp_path))
    left = sweep.study.ask()
    assert left.params == {}
    sweep = run(tmp_path, trials=3)
    states = [t.state for t in sweep.trials]
    assert states == [TrialState.FAIL, *[TrialState.COMPLETE] * 3]


def test_a_lock_that_another_keeps_ends_in_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mupo_ray.tune.storage._LOCK_TIMEOUT_S", 0.2)
    path = tmp_path / "folder" / "lock"
    assert not is_held(path)
    with held(path) as lock:
        assert is_held(path)
        with (
            pytest.raises(SweepError, match=r"lock: another worker has held it for 0\.2 s"),
            held(path),
        ):
            pass
        lock.release()
        assert not is_held(path), "let go before the end of the block"
    assert path.exists(), "those who wait hold the same file"
    with held(path):
        pass


def test_the_kernel_lets_go_of_what_a_killed_process_held(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    script = f"""
import time
from pathlib import Path
from mupo_ray.tune.storage import held
with held(Path({str(path)!r})):
    print("held", flush=True)
    time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        assert is_held(path)
        process.kill()
        process.wait()
    assert not is_held(path)
