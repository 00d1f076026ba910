"""What the study trains: arms that differ in one thing, over the same data, steps and budget.

Every setting that arms share was chosen for GRPO (docs/results.md) and is left as it is for the
others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mupo_ray.config import load_config

if TYPE_CHECKING:
    from pathlib import Path

    from mupo_ray.config import Config

TASKS = ("plain", "hinted")
"""The two laptop tasks: picture puzzles, and the same with unreliable hints in the picture."""

TEMPERATURES = (0.4, 0.7, 1.0)
"""Of the samples that a finished model is read at; the greedy answer comes beside each."""

BASE = "base"
"""The model that all start from."""
GRPO = "grpo"
STOPPED = "grpo_stopped"
"""GRPO ended at the step where the held-out set, not the test set, showed it at its best."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way to train."""

    name: str
    title: str
    overrides: tuple[str, ...]


def _grpo(name: str, title: str, *overrides: str) -> Arm:
    return Arm(name=name, title=title, overrides=("method={name: grpo}", *overrides))


def _mupo(num_groups: int, weighting: str, *, is_diverse: bool) -> Arm:
    smallest = 4 if num_groups == 2 else 3
    marks = ("" if weighting == "release" else "_paper") + ("" if is_diverse else "_plain")
    words = (f"{weighting} weights",) + (() if is_diverse else ("no diversity reward",))
    return Arm(
        name=f"mupo_k{num_groups}{marks}",
        title=f"MUPO K={num_groups}, {', '.join(words)}",
        overrides=(
            f"method.num_groups={num_groups}",
            f"method.min_group_size={smallest}",
            f"method.weighting={weighting}",
            *(() if is_diverse else ("method.diversity_weight={start: 0.0, end: 0.0}",)),
        ),
    )


ARMS: tuple[Arm, ...] = (
    _grpo(BASE, "base model"),
    _grpo(GRPO, "GRPO", "eval.every_steps=5"),
    _grpo(STOPPED, "GRPO, stopped early"),
    _grpo("grpo_kl", "GRPO, KL 0.1", "loss.kl_coef=0.1"),
    _grpo("grpo_entropy", "GRPO, entropy bonus 0.01", "loss.entropy_coef=0.01"),
    Arm(name="pass_4", title="pass@4 advantages", overrides=("method={name: pass_k, k: 4}",)),
    *(
        _mupo(num_groups, weighting, is_diverse=is_diverse)
        for num_groups in (2, 3, 4)
        for weighting, is_diverse in (("release", True), ("release", False), ("paper", True))
    ),
)
"""In the order in which tables show them."""

# In the order of training; what is not named comes last.
_ORDER = (
    *(BASE, GRPO, STOPPED, "mupo_k3", "pass_4", "mupo_k2", "mupo_k4"),
    *("mupo_k3_plain", "mupo_k3_paper", "grpo_kl", "grpo_entropy"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What a study trains; one of other sizes lies in another folder."""

    folder: Path
    config_files: tuple[Path, ...]
    """What all runs share."""
    arms: tuple[Arm, ...] = ARMS
    seeds: tuple[int, ...] = (0, 1, 2)
    steps: int = 30
    """Training steps of each run."""
    test_problems: int = 96
    test_samples: int = 8
    """Of each problem, at each temperature."""

    def config(self, task: str, arm: Arm, seed: int) -> Config:
        """The run of one arm at one seed."""
        data, model = self.task_folder(task) / "data", self.task_folder(task) / "model"
        return load_config(
            self.config_files,
            [
                f"run.name={arm.name}_s{seed}",
                f"run.storage_path={self.folder / task}",
                f"run.seed={seed}",
                f"model.path={model}",
                f"data.train={data / 'train.parquet'}",
                f"eval.path={data / 'eval.parquet'}",
                f"train.num_steps={self.steps}",
                f"checkpoint.every_steps={self.steps}",
                f"tracking.cohorts_every_steps={self.steps}",
                *arm.overrides,
            ],
        )

    def runs(self) -> list[tuple[Arm, int]]:
        """Arms and seeds in the order of training: what the study stands or falls by comes first.

        GRPO comes before GRPO stopped early, whose end follows from all its seeds.
        """
        arms = sorted(
            self.arms, key=lambda a: _ORDER.index(a.name) if a.name in _ORDER else len(_ORDER)
        )
        return [(arm, seed) for arm in arms for seed in self.seeds]

    def task_folder(self, task: str) -> Path:
        """Where base model and data of a task lie."""
        return self.folder / "tasks" / task
