"""Works through a study: trains what is missing, then reads each finished model on the test set.

    every arm and seed --session--> run folder --engines hold its last weights--> test/T*.parquet
                                                                                test/values.json

An interrupted study goes on where it stopped: a run whose values are there is done.
"""

from __future__ import annotations

import json
import math
import time
from typing import TYPE_CHECKING

import numpy as np

from mupo_ray.core.seeding import derive_seed
from mupo_ray.data.render import PromptRenderer
from mupo_ray.data.stream import load_prompts
from mupo_ray.demo.shapes import UNRECOGNISED, strategy_values
from mupo_ray.evaluation.during_training import sample_problems
from mupo_ray.evaluation.judging import embed_problems
from mupo_ray.evaluation.samples import save_problems
from mupo_ray.evaluation.values import pass_values, plain_values
from mupo_ray.files import write_text
from mupo_ray.rewards.verdicts import Verifier
from mupo_ray.rollout.embedder import EmbedderPool
from mupo_ray.rollout.pool import EnginePool, SamplingPlan, placeholder_ids
from mupo_ray.runs.summary import read_run
from mupo_ray.train.launch import run_training
from mupo_ray.train.session import Session, open_session
from study.plan import BASE, GRPO, STOPPED, TEMPERATURES, Arm, Study

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from mupo_ray.config import Config
    from mupo_ray.evaluation.samples import EvaluatedProblem
    from mupo_ray.types import Prompt

TEST_SET = "test"
# What the study compares at k = 4 decides where GRPO is stopped.
_STOP_BY = "eval/heldout/pass@4"


def run_task(study: Study, task: str, say: Callable[[str], None], deadline: float) -> None:
    """Train and test the runs of one task that are missing; Ray must be connected.

    Args:
        study: what to train.
        task: one of `TASKS`; base model and data are in its folder.
        say: gets a line for each finished run.
        deadline: of `time.monotonic`, after which no further run is begun.

    Raises:
        MupoError: a run failed.
    """
    missing = [(a, s) for a, s in study.runs() if not is_done(study.config(task, a, s).run_dir)]
    if not missing:
        return
    first = study.config(task, *missing[0])
    with open_session(first) as session:
        reader = TestReader(study, task, first, session)
        for number, (arm, seed) in enumerate(missing, 1):
            began = time.monotonic()
            if began > deadline:
                say(f"{task}: out of time, {len(missing) - number + 1} runs left for another go")
                return
            stop = stop_of(study, task, arm)
            config = study.config(task, arm, seed)
            run_training(config, session=session, stop_after_step=stop)
            trained = time.monotonic()
            reader.read(config, version=stop)
            say(
                f"{task}: {number} of {len(missing)}, {config.run.name}, {stop} steps "
                f"{trained - began:.0f} s, test {time.monotonic() - trained:.0f} s"
            )


def values_file(run_dir: Path) -> Path:
    """What a finished model showed: temperature -> measure -> one value a test problem."""
    return run_dir / "test" / "values.json"


def is_done(run_dir: Path) -> bool:
    """Whether a run was trained and tested."""
    return values_file(run_dir).is_file()


def stop_of(study: Study, task: str, arm: Arm) -> int:
    """Steps that an arm is trained for.

    GRPO stopped early ends where GRPO, mean over seeds, had its best pass@4 on the held-out set.
    """
    if arm.name == BASE:
        return 0
    if arm.name != STOPPED:
        return study.steps
    arm = next(a for a in study.arms if a.name == GRPO)
    by_step: dict[int, list[float]] = {}
    for seed in study.seeds:
        steps, values = read_run(study.config(task, arm, seed).run_dir).series(_STOP_BY)
        for step, value in zip(steps, values, strict=True):
            by_step.setdefault(step, []).append(value)
    return max((s for s in by_step if s > 0), key=lambda s: (float(np.mean(by_step[s])), -s))


class TestReader:
    """Reads the model that a session's engines hold on the test set."""

    def __init__(self, study: Study, task: str, config: Config, session: Session) -> None:
        from transformers import AutoConfig

        renderer = PromptRenderer.from_config(config)
        path = study.task_folder(task) / "data" / "test.parquet"
        self._prompts: list[Prompt] = load_prompts(path, renderer, study.test_problems)
        self._num_samples = study.test_samples
        self._session = session
        self._forbidden_ids = placeholder_ids(AutoConfig.from_pretrained(config.model.path))
        self._verifier = Verifier.from_config(config.reward, is_think_opened=renderer.opens_think)

    def read(self, config: Config, *, version: int) -> None:
        """Sample at every temperature; the file of values is written last."""
        services = self._session.services
        pool = EnginePool(
            services.engines,
            forbidden_ids=self._forbidden_ids,
            max_num_seqs=config.rollout.max_num_seqs,
            request_timeout_s=config.rollout.request_timeout_s,
        )
        embedder = EmbedderPool(services.embedders, config.embedder.timeout_s)
        values = {}
        for temperature in TEMPERATURES:
            plan = SamplingPlan(
                num_generations=self._num_samples,
                max_new_tokens=config.rollout.max_new_tokens,
                temperature=temperature,
                top_p=1.0,
                seed=derive_seed(config.run.seed, "test"),
                with_logprobs=False,
            )
            problems = sample_problems(
                TEST_SET, self._prompts, plan, version, pool=pool, verifier=self._verifier
            )
            if temperature == 1.0:
                problems = embed_problems(problems, embedder)
            save_problems(config.run_dir / "test" / f"T{temperature:g}.parquet", problems)
            values[f"{temperature:g}"] = values_of(problems)
        write_text(values_file(config.run_dir), json.dumps(values) + "\n")


def values_of(problems: Sequence[EvaluatedProblem]) -> dict[str, list[float | None]]:
    """Measure -> its value for each problem, None where a problem has none."""
    strategies = strategy_values(problems)
    ks = range(1, len(problems[0].samples) + 1)
    rows = {f"pass@{k}": row for k, row in zip(ks, pass_values(problems, ks), strict=True)}
    rows |= {name: plain_values(problems, name) for name in ("acc@1", "diversity", "length")}
    rows |= {
        "strategies": strategies.num_in_first_8,
        "fidelity": strategies.fidelity,
        UNRECOGNISED: strategies.shares[UNRECOGNISED],
    }
    return {
        name: [None if math.isnan(value) else float(value) for value in row]
        for name, row in rows.items()
    }
