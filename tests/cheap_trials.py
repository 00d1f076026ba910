"""A sweep whose runs cost next to nothing: for what many processes do to one study.

Its trainer writes a run's folder as the real one does, metrics line by line, and goes on from the
last line where it is given the same run again. Run as a script it is one worker, or several.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mupo_ray.config import Config
from mupo_ray.errors import TrainingError
from mupo_ray.files import read_jsonl
from mupo_ray.settings.load import load_config, save_resolved
from mupo_ray.train.entry import STOP_FILE
from mupo_ray.tune.spec import SweepConfig
from mupo_ray.tune.study import Sweep, open_sweep
from mupo_ray.tune.worker import work

STEPS = 4
PASS_4 = "eval/heldout/pass@4"
TIMES = {"time/step_s": 0.001, "time/eval_s": 0.002, "time/checkpoint_s": 0.004}


def accuracy(config: Config, step: int) -> float:
    """Best at a rate of 2e-4 and many groups; rises with each step."""
    method: Any = config.method
    distance = abs(config.train.optimizer.lr - 2e-4) / 2e-4
    return step / STEPS * (0.5 + 0.1 * method.num_groups - 0.1 * distance)


class CheapTrainer:
    """`mupo_ray.tune.worker.Trainer` without a model."""

    def __init__(self, step_s: float = 0.0) -> None:
        self.step_s = step_s
        self.value: Callable[[Config, int], float | None] = accuracy
        self.trained: list[Config] = []
        self._reason = threading.Event()
        self._said = ""

    def prepare(self, config: Config, still_wanted: Callable[[], bool]) -> None:
        pass

    def let_go(self) -> None:
        pass

    def stop(self, reason: str) -> None:
        self._said = reason
        self._reason.set()

    def train(self, config: Config) -> None:
        self.trained.append(config)
        self._reason.clear()
        save_resolved(config, config.run_dir)
        (config.run_dir / STOP_FILE).unlink(missing_ok=True)
        path = config.run_dir / "metrics.jsonl"
        rows = read_jsonl(path)
        with (config.run_dir / "starts.jsonl").open("a") as starts:
            starts.write(json.dumps({"pid": os.getpid(), "from": len(rows)}) + "\n")
        for step in range(len(rows), STEPS + 1):
            stopped = self._reason.wait(self.step_s)
            if stopped:
                record = {"step": step, "message": self._said}
                (config.run_dir / STOP_FILE).write_text(json.dumps(record))
                return
            value = self.value(config, step)
            row = {"step": step, PASS_4: value, "eval/heldout/acc@1": 0.5} | TIMES
            with path.open("a") as file:
                file.write(json.dumps(row) + "\n")


class Silence:
    """`mupo_ray.tune.worker.Watcher` that keeps what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def show(self, sweep: Sweep) -> None:
        pass

    def say(self, line: str) -> None:
        self.said.append(line)

    def ended(self, sweep: Sweep, number: int) -> None:
        pass


def cheap_sweep(**changes: Any) -> SweepConfig:
    """K, its smallest group and the rate; random points unless changed."""
    fields = {
        "search": {
            "method.min_group_size": {"type": "int", "low": 2, "high": 4},
            "method.num_groups": {
                "type": "int",
                "low": 1,
                "high": "min(4, rollout.num_generations // method.min_group_size)",
            },
            "train.optimizer.lr": {"type": "float", "low": 1e-5, "high": 1e-3, "log": True},
        },
        "sampler": {"name": "random"},
        "trials": 8,
        **changes,
    }
    return SweepConfig.model_validate_json(json.dumps(fields))


def base(folder: Path) -> Config:
    """What a cheap sweep varies."""
    return load_config([], [f"run.storage_path={folder}", f"train.num_steps={STEPS}"])


def train_failing(config: Config) -> None:
    raise TrainingError(f"step 1: the loss is nan with a rate of {config.train.optimizer.lr:g}")


def main(folder: str, changes: str, step_s: str, *only_open: str) -> None:
    """One worker: changes of the sweep as JSON, seconds a step, `open` to train nothing."""
    sweep = open_sweep(cheap_sweep(**json.loads(changes)), base(Path(folder)))
    if only_open:
        return
    watcher = Silence()
    work(sweep, CheapTrainer(float(step_s)), watcher)
    print(json.dumps({"said": watcher.said}), flush=True)


def fork(count: int, *arguments: str) -> int:
    """Several workers at the same moment, which share the time of importing; how many failed."""
    children = []
    for _ in range(count):
        if (child := os.fork()) == 0:
            try:
                main(*arguments)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children.append(child)
    return sum(os.waitpid(child, 0)[1] != 0 for child in children)


if __name__ == "__main__":
    if sys.argv[1] == "1":
        main(*sys.argv[2:])
    else:
        sys.exit(fork(int(sys.argv[1]), *sys.argv[2:]))
