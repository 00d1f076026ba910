"""The study: arms, when GRPO is stopped, and tables against numbers worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from study.plan import ARMS, BASE, GRPO, STOPPED, TASKS, Study
from study.run import is_done, stop_of, values_file, values_of
from study.tables import read_task, write_tables

from mupo_ray.evaluation.samples import EvaluatedProblem, JudgedResponse
from mupo_ray.methods.grpo import GrpoConfig
from mupo_ray.methods.mupo import MupoConfig
from mupo_ray.methods.pass_k import PassKConfig

CONFIGS = Path(__file__).parents[2] / "configs"
FILES = (CONFIGS / "tiny_cpu.yaml", CONFIGS / "study.yaml")


def small(folder: Path, *names: str) -> Study:
    arms = tuple(arm for arm in ARMS if arm.name in names)
    return Study(folder=folder, config_files=FILES, arms=arms, seeds=(0, 1), steps=10)


def write_run(study: Study, name: str, seed: int, passes: list[float]) -> None:
    """A finished run with two problems; pass@k is the same for all k, greedy is always right."""
    arm = next(arm for arm in study.arms if arm.name == name)
    path = values_file(study.config("plain", arm, seed).run_dir)
    path.parent.mkdir(parents=True)
    measures = {f"pass@{k}": passes for k in range(1, 9)} | {
        "acc@1": [1.0, 1.0],
        "diversity": [0.5, 0.3],
        "length": [19.0, 19.0],
        "strategies": [2.0, 3.0],
        "fidelity": [1.0, None],
        "unrecognised": [0.0, 0.5],
    }
    cooler = measures | {f"pass@{k}": [1.0, 0.5] for k in range(1, 9)}
    path.write_text(json.dumps({"0.4": cooler, "1": measures}))


def write_course(study: Study, seed: int, pass_4: dict[int, float]) -> None:
    arm = next(arm for arm in study.arms if arm.name == GRPO)
    folder = study.config("plain", arm, seed).run_dir
    folder.mkdir(parents=True, exist_ok=True)
    rows = ({"step": step, "eval/heldout/pass@4": value} for step, value in pass_4.items())
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_arms_differ_in_what_they_say(tmp_path: Path):
    study = Study(folder=tmp_path, config_files=FILES)
    configs = {arm.name: study.config("plain", arm, 1) for arm in study.arms}
    assert len(configs) == len(study.arms)
    base = configs[GRPO]
    for name, config in configs.items():
        changed = {
            section
            for section in ("data", "rollout", "train", "reward", "filter", "loss", "method")
            if getattr(config, section) != getattr(base, section)
        }
        if name.startswith("grpo_") and name != STOPPED:
            assert changed == {"loss"}
        else:
            assert changed <= {"method"}
        assert config.run.seed == 1
    assert isinstance(configs["pass_4"].method, PassKConfig)
    assert isinstance(configs[STOPPED].method, GrpoConfig)
    mupo = [c.method for c in configs.values() if isinstance(c.method, MupoConfig)]
    assert {(m.num_groups, m.weighting, m.diversity_weight.start > 0) for m in mupo} == {
        (k, weighting, is_diverse)
        for k in (2, 3, 4)
        for weighting, is_diverse in (("release", True), ("release", False), ("paper", True))
    }


def test_tasks_have_folders_of_their_own(tmp_path: Path):
    study = small(tmp_path, GRPO)
    models = {study.config(task, study.arms[0], 0).model.path for task in TASKS}
    assert len(models) == len(TASKS)


def test_grpo_is_stopped_at_its_best_step_of_all_seeds(tmp_path: Path):
    study = small(tmp_path, BASE, GRPO, STOPPED, "mupo_k3")
    write_course(study, 0, {0: 0.99, 5: 0.7, 10: 0.9})
    write_course(study, 1, {0: 0.99, 5: 0.9, 10: 0.6})
    by_name = {arm.name: arm for arm in study.arms}
    # Means .80 at 5 and .75 at 10; step 0 is no training.
    assert stop_of(study, "plain", by_name[STOPPED]) == 5
    assert stop_of(study, "plain", by_name["mupo_k3"]) == 10
    assert stop_of(study, "plain", by_name[BASE]) == 0


def test_what_matters_is_trained_first(tmp_path: Path):
    study = Study(folder=tmp_path, config_files=FILES, seeds=(0, 1))
    runs = [(arm.name, seed) for arm, seed in study.runs()]
    assert len(set(runs)) == len(runs) == 2 * len(ARMS)
    assert runs[:8] == [(a, s) for a in (BASE, GRPO, STOPPED, "mupo_k3") for s in (0, 1)]
    assert runs[-1] == ("mupo_k4_paper", 1)


def test_tables_by_hand(tmp_path: Path):
    study = small(tmp_path, GRPO, "mupo_k3")
    for seed, grpo, mupo in ((0, [0.2, 0.6], [0.4, 0.8]), (1, [0.4, 0.8], [0.6, 1.0])):
        write_run(study, GRPO, seed, grpo)
        write_run(study, "mupo_k3", seed, mupo)
        write_course(study, seed, {0: 0.5, 10: 0.6})
    seen, missing = read_task(study, "plain")
    assert not missing
    grpo = seen[GRPO]
    # Seeds' means .4 and .6; problems' means .3 and .7.
    assert grpo.mean("pass@4") == pytest.approx(0.5)
    assert grpo.half_range("pass@4") == pytest.approx(0.1)
    assert grpo.over_seeds("pass@4").tolist() == pytest.approx([0.3, 0.7])
    assert grpo.mean("fidelity") == 1.0
    assert grpo.best("pass@1") == "0.4"
    text = write_tables(study, ["plain"])
    assert "**+0.200** (+0.200 to +0.200)" in text
    assert ".750 (" in text
    assert "T=0.4" in text
    assert (tmp_path / "tables.md").read_text() == text
    assert (tmp_path / "study.png").stat().st_size > 10_000


def test_an_arm_with_a_seed_missing_is_named(tmp_path: Path):
    study = small(tmp_path, GRPO, "mupo_k3")
    for seed in (0, 1):
        write_run(study, GRPO, seed, [0.2, 0.6])
        write_course(study, seed, {0: 0.5, 10: 0.6})
    write_run(study, "mupo_k3", 0, [0.2, 0.6])
    assert not is_done(study.config("plain", study.arms[1], 1).run_dir)
    assert "Without runs at every seed: mupo_k3." in write_tables(study, ["plain"])


def test_values_of_samples_by_hand():
    def judged(text: str, accuracy: float) -> JudgedResponse:
        return JudgedResponse(
            text=text,
            num_tokens=4,
            is_truncated=False,
            accuracy=accuracy,
            format=1.0,
            extracted=None,
            reason="right",
        )

    problem = EvaluatedProblem(
        set_name="test",
        prompt_id="p",
        position=0,
        question="missing number ?",
        answer="5",
        greedy=judged("?", 1.0),
        samples=(judged("?", 1.0), judged("?", 0.0)),
    )
    values = values_of([problem])
    assert values["pass@1"] == [0.5]
    assert values["pass@2"] == [1.0]
    assert values["acc@1"] == [1.0]
    assert values["unrecognised"] == [1.0]
    assert values["fidelity"] == values["diversity"] == [None]
