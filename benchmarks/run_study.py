"""The study: GRPO, pass@k advantages and MUPO on both laptop tasks, at several seeds.

All runs of a task share base model, data, steps and services; only the seed of data order and
sampling differs between seeds, and only the method (or what its name says) between arms. Finished
runs are kept, so an interrupted study, or one out of time, goes on where it stopped.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from study.plan import ARMS, BASE, GRPO, TASKS, Study

from mupo_ray.errors import ConfigError, MupoError

if TYPE_CHECKING:
    from collections.abc import Sequence

_ROOT = Path(__file__).resolve().parents[1]
_CONFIGS = _ROOT / "configs"


def main(argv: list[str] | None = None) -> int:
    """Run the job; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("runs/study"))
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--arms", nargs="+", choices=[arm.name for arm in ARMS])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=30, help="training steps of each run")
    parser.add_argument(
        "--minutes", type=float, default=55.0, help="begin no run after; run again to go on"
    )
    parser.add_argument("--tables-only", action="store_true", help="of the runs that are there")
    args = parser.parse_args(argv)
    began = time.monotonic()
    try:
        wanted = {BASE, GRPO, *(args.arms or (arm.name for arm in ARMS))}
        study = Study(
            folder=args.folder,
            config_files=(_CONFIGS / "tiny_cpu.yaml", _CONFIGS / "study.yaml"),
            arms=tuple(arm for arm in ARMS if arm.name in wanted),
            seeds=tuple(args.seeds),
            steps=args.steps,
        )
        if not args.tables_only:
            _train(study, args.tasks, began + 60.0 * args.minutes)
        from study.tables import write_tables

        print(write_tables(study, args.tasks))
    except MupoError as err:
        print(f"error: {err}", file=sys.stderr)
        return 1
    print(f"\ntables and plots  {args.folder}\n{time.monotonic() - began:.0f} s")
    return 0


def _train(study: Study, tasks: Sequence[str], deadline: float) -> None:
    builders = [_prepare(study, task) for task in tasks]
    try:
        # Meanwhile, on another core.
        from study.run import run_task

        from mupo_ray.observability.console import set_up_logging
        from mupo_ray.train.launch import connect

        set_up_logging()
        connect(study.config(tasks[0], study.arms[0], study.seeds[0]))
        for task, builder in zip(tasks, builders, strict=True):
            if builder.wait() != 0:
                raise ConfigError(f"making the {task} task failed, see above")
    finally:
        for builder in builders:
            builder.kill()
    # One after the other, each with its share of the time: side by side on two cores, two trainers
    # and two engines take longer than in turn.
    began = time.monotonic()
    for number, task in enumerate(tasks, 1):
        run_task(study, task, _say, began + (deadline - began) * number / len(tasks))


def _prepare(study: Study, task: str) -> subprocess.Popen[bytes]:
    """Make a task's puzzles and base model, unless they are there."""
    command = [sys.executable, str(_ROOT / "jobs" / "prepare_demo.py")]
    command += ["--folder", str(study.task_folder(task))]
    command += ["--hinted"] if task == "hinted" else []
    return subprocess.Popen(command, env=os.environ | {"DS_ACCELERATOR": "cpu"})


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
