r"""The driver's side of a run: check, place, start, train, stop.

check inputs -> wait for the placement -> services (engines, embedders) | Ray Train workers
                                                  \______ switchboard ______/
"""

from __future__ import annotations

import json
import logging
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import ray
import ray.train
from ray.train.torch import TorchConfig, TorchTrainer

from mupo_ray import errors
from mupo_ray.data.table import open_table
from mupo_ray.errors import CheckpointError, MupoError, TrainingError
from mupo_ray.placement.connect import join_or_start
from mupo_ray.placement.plan import live_cluster, render, wait_for_plan
from mupo_ray.rewards.extra import load_extra_rewards
from mupo_ray.rollout.services import (
    Switchboard,
    start_services,
    stop_services,
    wait_for_cards,
)
from mupo_ray.settings.load import differences, leaves, load_resolved, resolve_paths, save_resolved
from mupo_ray.train.entry import (
    FAILURE_FILE,
    STOP_FILE,
    early_stop,
    hash_of,
    make_renderer,
    train_loop,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from mupo_ray.config import Config
    from mupo_ray.placement.plan import PlacementPlan
    from mupo_ray.rollout.services import Services
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
        session: running workers and services to use; started and stopped here where None.
        stop_after_step: end early after this many finished steps, with a checkpoint.

    Returns:
        The run's folder. `stopped.json` in it says why, where a rule ended the run early.

    Raises:
        MupoError: whatever kept the run from its end, in one message.
    """
    run_dir = config.run_dir
    config_hash = hash_of(config)
    if session is not None:
        session.check_fits(config)
    check_inputs(config)
    _check_same_run(config)
    run_dir.mkdir(parents=True, exist_ok=True)
    failure_file = run_dir / FAILURE_FILE
    failure_file.unlink(missing_ok=True)
    (run_dir / STOP_FILE).unlink(missing_ok=True)
    plan = wait_for_plan(config) if session is None else None
    if plan is not None:
        logger.info("placement\n%s", render(plan, live_cluster()))
    save_resolved(config, run_dir, placement=None if plan is None else plan.as_dict())
    config = resolve_paths(config)
    task = {
        "config": config.model_dump_json(),
        "config_hash": config_hash,
        "stop_after_step": stop_after_step,
        "max_failures": config.train.max_failures,
    }
    try:
        if session is None:
            _train_alone(config, plan, task)
        else:
            session.train(task)
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
    make_renderer(config)
    open_table(config.data.train)
    if config.eval.path is not None:
        open_table(config.eval.path)


def _check_same_run(config: Config) -> None:
    if not (config.run_dir / "run.json").exists():
        return
    before = load_resolved(config.run_dir)
    if hash_of(before) != hash_of(config):
        told = differences(leaves(before.model_dump()), leaves(config.model_dump()))
        raise CheckpointError(
            f"{config.run_dir} holds a run of another configuration "
            f"({told}); choose another run.name, "
            "or the same values to resume it"
        )


def _train_alone(config: Config, plan: PlacementPlan | None, task: dict[str, Any]) -> None:
    switchboard = ray.remote(Switchboard).options(num_cpus=0).remote()
    trainer = make_trainer(
        config,
        train_loop,
        {**task, "switchboard": switchboard},
        name=config.run.name,
        max_failures=config.train.max_failures,
        num_to_keep=config.checkpoint.keep,
    )
    try:
        with serving(config, plan, None, switchboard):
            trainer.fit()
    except MupoError:
        raise
    except Exception as err:
        raise cause_of_failure(err) from err
    finally:
        ray.kill(switchboard)


@contextmanager
def serving(
    config: Config, plan: PlacementPlan | None, services: Services | None, switchboard: Any
) -> Iterator[None]:
    """Services behind the switchboard while the trainers run; started here where None."""
    if services is not None:
        ray.get(switchboard.offer.remote(services), timeout=config.rollout.start_timeout_s)
        yield
        return
    assert plan is not None
    starter = _Starter(config, plan, switchboard)
    starter.start()
    try:
        yield
    finally:
        starter.stop()


class _Starter(threading.Thread):
    """Starts the services while Ray Train starts its workers; on shared GPUs after them."""

    def __init__(self, config: Config, plan: PlacementPlan, switchboard: Any) -> None:
        super().__init__(name="service-starter", daemon=True)
        self._config = config
        self._plan = plan
        self._switchboard = switchboard
        self._services: Services | None = None
        self._cancelled = threading.Event()

    def run(self) -> None:
        timeout_s = self._config.rollout.start_timeout_s
        try:
            shares = any(bundle.cards_of for bundle in self._plan.bundles)
            workers = self._config.train.num_workers
            cards = wait_for_cards(self._switchboard, workers, timeout_s) if shares else ()
            self._services = start_services(self._config, self._plan, cards, self._cancelled)
            ray.get(self._switchboard.offer.remote(self._services), timeout=timeout_s)
        except Exception as err:
            # The trainers are waiting at the switchboard: they raise it and end the run.
            if not self._cancelled.is_set():
                logger.error("%s", err)
            self._switchboard.fail.remote(str(err))

    def stop(self) -> None:
        self._cancelled.set()
        self.join(timeout=self._config.rollout.start_timeout_s)
        if self._services is not None:
            stop_services(self._services)


def make_trainer(
    config: Config,
    loop: Callable[[dict[str, Any]], None],
    loop_config: dict[str, Any],
    *,
    name: str,
    max_failures: int,
    num_to_keep: int | None = None,
) -> TorchTrainer:
    """Ray Train's trainer of the workers that a config describes.

    Args:
        config: workers, device and storage.
        loop: `train_loop_per_worker`.
        loop_config: its argument.
        name: folder of Ray Train's records below the run's storage path.
        max_failures: restarts of dead workers; -1 without limit.
        num_to_keep: latest checkpoints kept; all where None.
    """
    on_gpu = config.run.device == "cuda"
    return TorchTrainer(
        loop,
        train_loop_config=loop_config,
        torch_config=TorchConfig(
            backend="nccl" if on_gpu else "gloo", timeout_s=int(config.train.collective_timeout_s)
        ),
        scaling_config=ray.train.ScalingConfig(
            num_workers=config.train.num_workers,
            use_gpu=on_gpu,
            resources_per_worker={
                "CPU": config.train.cpus_per_worker,
                **({"GPU": 1} if on_gpu else {}),
            },
        ),
        run_config=ray.train.RunConfig(
            name=name,
            storage_path=str(config.run_dir.parent),
            failure_config=ray.train.FailureConfig(max_failures=max_failures),
            checkpoint_config=ray.train.CheckpointConfig(num_to_keep=num_to_keep),
            # Below that it prints every report with all metrics in it.
            logging_config=ray.train.LoggingConfig(log_level="WARNING"),
        ),
    )


def cause_of_failure(err: BaseException) -> MupoError:
    """The worker's own error out of Ray's wrapping."""
    failures = getattr(err, "worker_failures", None) or {}
    for failure in failures.values():
        inner: Any = failure
        while inner is not None:
            if isinstance(inner, MupoError):
                return inner
            inner = getattr(inner, "cause", None) or getattr(inner, "__cause__", None)
    lines = str(err).strip().splitlines()
    return TrainingError(f"training failed: {lines[-1] if lines else repr(err)}")
