"""The driver's side of a run: check what it is given, train it in a session, say how it ended."""

from __future__ import annotations

import json
import logging
from contextlib import nullcontext
from typing import TYPE_CHECKING

from mupo_ray import errors
from mupo_ray.data.render import PromptRenderer
from mupo_ray.data.table import open_table
from mupo_ray.errors import CheckpointError, TrainingError
from mupo_ray.placement.connect import join_or_start
from mupo_ray.rewards.extra import load_extra_rewards
from mupo_ray.runs.folder import (
    FAILURE_FILE,
    STOP_FILE,
    early_stop,
    hash_of,
    load_resolved,
    save_resolved,
)
from mupo_ray.settings.load import RUN_FILE, differences, leaves
from mupo_ray.train.board import RunTask
from mupo_ray.train.session import open_session

if TYPE_CHECKING:
    from pathlib import Path

    from mupo_ray.config import Config
    from mupo_ray.train.session import Session

logger = logging.getLogger(__name__)

# Read by torch and vLLM at import, in workers and in what they start.
_CPU_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "TORCH_COMPILE_DISABLE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}

# Progress bars of loading a model and notes of torch's, in the middle of the run's own lines.
_QUIET_ENVIRONMENT = {
    "TQDM_DISABLE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}


def connect(config: Config) -> None:
    """Join the cluster of this process's environment, or start a local one.

    On CPU the environment of all workers is set to what torch and vLLM need.

    Raises:
        PlacementError: the cluster does not answer.
    """
    env = _QUIET_ENVIRONMENT | (_CPU_ENVIRONMENT if config.run.device == "cpu" else {})
    join_or_start(runtime_env={"env_vars": env}, log_to_driver=True)


def run_training(
    config: Config, *, session: Session | None = None, stop_after_step: int | None = None
) -> Path:
    """Train one run to its end, resuming what its folder holds.

    Args:
        config: the run; Ray must be connected.
        session: running workers and services to use; a session of this run alone where None.
        stop_after_step: end early after this many finished steps, with a checkpoint.

    Returns:
        The run's folder. `stopped.json` in it says why, where a rule ended the run early.

    Raises:
        MupoError: whatever kept the run from its end, in one message.
    """
    run_dir = config.run_dir
    if session is not None:
        session.check_fits(config)
    check_inputs(config)
    _check_same_run(config)
    run_dir.mkdir(parents=True, exist_ok=True)
    failure_file = run_dir / FAILURE_FILE
    failure_file.unlink(missing_ok=True)
    (run_dir / STOP_FILE).unlink(missing_ok=True)
    task = RunTask(
        config=config.with_absolute_paths(),
        config_hash=hash_of(config),
        stop_after_step=stop_after_step,
    )
    try:
        with nullcontext(session) if session is not None else open_session(config) as running:
            plan = running.plan if session is None else None
            save_resolved(config, run_dir, placement=None if plan is None else plan.as_dict())
            running.train(task)
    except Exception:
        if not failure_file.exists():
            raise
    if failure_file.exists():
        record = json.loads(failure_file.read_text())
        raise getattr(errors, record["type"], TrainingError)(record["message"])
    if (reason := early_stop(run_dir)) is not None:
        logger.warning("%s", reason)
    return run_dir


def check_inputs(config: Config) -> None:
    """Find what is wrong with model, data and rewards before anything is started.

    Raises:
        DataError: no such file or model, a missing column, a chat template without images.
        ConfigError: a reward of the user's own that cannot be loaded.
    """
    load_extra_rewards(config.reward.extra)
    PromptRenderer.from_config(config)
    open_table(config.data.train)
    if config.eval.path is not None:
        open_table(config.eval.path)


def _check_same_run(config: Config) -> None:
    if not (config.run_dir / RUN_FILE).exists():
        return
    before = load_resolved(config.run_dir)
    if hash_of(before) != hash_of(config):
        told = differences(leaves(before.model_dump()), leaves(config.model_dump()))
        raise CheckpointError(
            f"{config.run_dir} holds a run of another configuration "
            f"({told}); choose another run.name, "
            "or the same values to resume it"
        )
