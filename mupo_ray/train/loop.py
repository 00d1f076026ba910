"""The training loop, as every Ray Train worker runs it (SPMD).

Lines marked C are collective: all ranks reach them, a rank without data too. A step is numbered by
the updates before it; metrics of step s are logged as s + 1 finished steps, the base model's
evaluation as 0.
"""

from __future__ import annotations

import gc
import json
import logging
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
import ray.train
from ray.exceptions import RayActorError

from mupo_ray.errors import DataError, MupoError, TrainingError, WeightSyncError
from mupo_ray.evaluation.during_training import eval_metrics, evaluate
from mupo_ray.evaluation.samples import save_problems
from mupo_ray.runs.ledger import LedgerEntry
from mupo_ray.runs.records import cohort_rows, save_rows
from mupo_ray.train import checkpoint
from mupo_ray.train.batch import TrainItem
from mupo_ray.train.clock import Clock
from mupo_ray.train.collective import from_rank_zero, gather_objects
from mupo_ray.train.entry import FAILURE_FILE, STOP_FILE
from mupo_ray.train.stages import embed_step, sample_step, score_step
from mupo_ray.train.summary import join, metrics_of, record_step
from mupo_ray.train.update import train_step
from mupo_ray.train.weights import iter_weights
from mupo_ray.train.worker import Worker

if TYPE_CHECKING:
    from mupo_ray.types import ScoredCohort

logger = logging.getLogger(__name__)

_POLL_S = 0.1
_ANSWER_S = 60.0
_FATAL = (DataError, TrainingError)


def train_loop(inputs: dict[str, Any]) -> None:
    """Train one run; Ray Train's `train_loop_per_worker`.

    Args:
        inputs: `config` (JSON, local paths absolute), `config_hash`, `switchboard` (actor handle),
            `stop_after_step` (int or None), `in_session` (bool, False where missing).
    """
    worker: Worker | None = None
    run_dir = Worker.run_dir_of(inputs)
    if (run_dir / FAILURE_FILE).exists():
        # Ray Train restarts whatever fails; the driver reads the reason once this returns.
        return
    try:
        worker = Worker.start(inputs)
        board = inputs["switchboard"] if worker.in_session else None
        _train(worker, inputs.get("stop_after_step"), board)
    except MupoError as err:
        if isinstance(err, _FATAL) or getattr(err, "is_fatal", False):
            _record_failure(run_dir, err)
        raise
    finally:
        if worker is not None:
            worker.close()


def train_runs(inputs: dict[str, Any]) -> None:
    """Train the runs of a session one after another; Ray Train's `train_loop_per_worker`.

    Args:
        inputs: `switchboard`, the handle of a `SessionBoard`.
    """
    board = inputs["switchboard"]
    is_first = ray.train.get_context().get_world_rank() == 0
    while True:
        # Every rank takes part each time, so that none waits longer than a collective may.
        task: Any = from_rank_zero(_take(board) if is_first else None)  # C
        if task == "end":
            return
        if task == "wait":
            time.sleep(_POLL_S)
            continue
        try:
            train_loop({**task, "switchboard": board, "in_session": True})
        except Exception as err:
            name = type(err).__name__ if isinstance(err, MupoError) else TrainingError.__name__
            ray.get(board.note.remote({"type": name, "message": str(err)}), timeout=_ANSWER_S)
            raise
        # The policy of the next run needs the memory.
        gc.collect()
        if is_first:
            ray.get(board.finish.remote(), timeout=_ANSWER_S)


def _take(board: Any) -> dict[str, Any] | str:
    try:
        taken: dict[str, Any] | str = ray.get(board.take.remote(), timeout=_ANSWER_S)
    except RayActorError:
        # The driver ended without a word; Ray Train would restart a worker that fails for ever.
        return "end"
    return taken


def _train(w: Worker, stop_after_step: int | None, board: Any) -> None:
    config = w.config
    if w.collapse.stop_reason is not None:
        _record_stop(w, w.start_step, w.collapse.stop_reason)
        return
    _broadcast(w, w.start_step)  # C
    clock = Clock()
    if w.start_step == 0 and w.eval_prompts is not None:
        with clock("eval"):
            stats = _evaluate(w, 0)  # C
        _log(w, 0, stats | clock.stages())
    if stop_after_step is not None and w.start_step >= stop_after_step:
        return
    clock = Clock()
    for step in range(w.start_step, config.train.num_steps):
        if (reason := _asked_to_stop(w, board)) is not None:  # C
            _record_stop(w, step, reason)
            return
        w.method.diversity_factor = w.collapse.weight_factor
        sampled = sample_step(  # C
            config, step, stream=w.stream, pool=w.pool, verifier=w.verifier, clock=clock
        )
        with clock("embed"):
            embedded = embed_step(sampled.cohorts, w.method, w.embedder, config.embedder.on_failure)
        with clock("score"):
            scored = score_step(sampled.cohorts, embedded, w.method, step)
        with clock("update"):
            items = [TrainItem.from_scored(s, w.encode(s.cohort.prompt)) for s in scored]
            stats = train_step(w.policy, w.reference, items)  # C
        _check_agreement(config.sync.max_logprob_diff, stats, step)
        with clock("sync"):
            stats |= _broadcast(w, step + 1)  # C
        record = join(gather_objects(record_step(scored, sampled, embedded)))  # C
        stats |= metrics_of(record, w.world_size) | w.method.metrics(step) | w.pool_metrics()
        is_last = step + 1 == config.train.num_steps or step + 1 == stop_after_step
        if w.eval_prompts is not None and (is_last or (step + 1) % config.eval.every_steps == 0):
            with clock("eval"):
                stats |= _evaluate(w, step + 1)  # C
            is_last = is_last or w.collapse.stop_reason is not None
        if w.rank == 0:
            order = sorted(zip(record.positions, record.prompt_ids, strict=True))
            w.ledger.append(
                LedgerEntry(
                    step=step,
                    policy_version=step,
                    positions=[position for position, _ in order],
                    prompt_ids=[prompt_id for _, prompt_id in order],
                )
            )
        _save_cohorts(w, step, scored)
        stats |= clock.metrics()
        stats["rollout/tokens_per_s"] = sum(record.lengths) / stats["time/rollout_s"]
        _log(w, step + 1, stats)
        clock = Clock()
        # After all records of the step: a resumed run drops those behind its checkpoint and makes
        # them again, but could not make up for ones that a kill left out before it.
        if is_last or (step + 1) % config.checkpoint.every_steps == 0:
            with clock("checkpoint"):
                _save(w, step + 1, stats)  # C
        if is_last:
            _record_stop(w, step + 1, w.collapse.stop_reason)
            return


def _broadcast(w: Worker, version: int) -> dict[str, float]:
    """Bring the engines to this version; all ranks learn which of them hold it (C)."""
    began = time.monotonic()
    outcome: Any = None
    try:
        outcome = w.channel.send(version, iter_weights(w.policy))
    except WeightSyncError as err:
        outcome = err
    outcome = from_rank_zero(outcome)
    if isinstance(outcome, Exception):
        raise outcome
    w.pool.set_live(outcome.engines)
    return {
        "sync/send_s": time.monotonic() - began,
        "sync/commit_s": outcome.commit_s,
        "sync/bytes": float(outcome.num_bytes),
        "sync/engines_failed": float(len(outcome.failed)),
    }


def _check_agreement(limit: float | None, stats: dict[str, float], step: int) -> None:
    """Stop where sampler and trainer disagree about the same tokens under the same weights."""
    diff = stats.get("sync/logprob_diff_max")
    if limit is not None and diff is not None and not diff <= limit:
        raise TrainingError(
            f"step {step}: log-probs of engine and trainer differ by {diff:.3g}, "
            f"sync.max_logprob_diff allows {limit:g}; an engine samples from other weights, or the "
            "prompt is not the same on both sides"
        )


def _evaluate(w: Worker, version: int) -> dict[str, float]:
    """Evaluate on all ranks' shares, and watch what they show; rank 0's metrics (C)."""
    config = w.config.eval
    assert w.eval_prompts is not None
    mine = evaluate(
        w.config,
        w.eval_prompts[w.rank :: w.world_size],
        version=version,
        pool=w.pool,
        verifier=w.verifier,
        embedder=w.embedder,
    )
    problems = sorted((p for part in gather_objects(mine) for p in part), key=lambda p: p.position)
    if w.rank == 0:
        save_problems(w.run_dir / "eval" / config.name / f"step_{version:06d}.parquet", problems)
    found = from_rank_zero(eval_metrics(problems, config.name, config.pass_k))
    seen = w.collapse.observe(version, found)
    if w.rank == 0:
        for line in seen.warnings:
            logger.warning("%s", line)
    return found | seen.metrics


def _save(w: Worker, step: int, stats: dict[str, float]) -> None:
    """Write a checkpoint (C): Ray Train joins the ranks' folders in storage.

    Its storage is that of one run; the workers of a session write into each run's folder.
    """
    state = checkpoint.RunState(
        step=step, stream_position=w.stream.position, config_hash=w.config_hash
    )
    name = f"step_{step:06d}"
    if w.in_session:
        checkpoint.save(w.policy, w.run_dir / name, state)
        if w.rank == 0:
            checkpoint.keep_latest(w.run_dir, w.config.checkpoint.keep)
        return
    with tempfile.TemporaryDirectory(prefix="mupo_ckpt_") as folder:
        checkpoint.save(w.policy, Path(folder), state)
        ray.train.report(
            {"step": step, **stats},
            checkpoint=ray.train.Checkpoint.from_directory(folder),
            checkpoint_dir_name=name,
        )


def _save_cohorts(w: Worker, step: int, scored: list[ScoredCohort]) -> None:
    tracking = w.config.tracking
    if w.rank != 0 or (
        step % tracking.cohorts_every_steps and step + 1 != w.config.train.num_steps
    ):
        return
    rows = cohort_rows(scored[: tracking.cohorts_per_save])
    if rows:
        save_rows(w.run_dir / "rollouts" / f"step_{step:06d}.parquet", rows)


def _log(w: Worker, step: int, stats: dict[str, float]) -> None:
    if w.rank == 0:
        w.tracker.log(step, stats)


def _asked_to_stop(w: Worker, board: Any) -> str | None:
    """Why the driver wants the run to end (C); only a session's board can be asked."""
    if board is None:
        return None
    reason: str | None = from_rank_zero(
        ray.get(board.stop_reason.remote(), timeout=_ANSWER_S) if w.rank == 0 else None
    )
    return reason


def _record_stop(w: Worker, step: int, reason: str | None) -> None:
    """Say why the run ends before its last step, where there is a reason."""
    if w.rank == 0 and reason is not None and step < w.config.train.num_steps:
        (w.run_dir / STOP_FILE).write_text(json.dumps({"step": step, "message": reason}) + "\n")


def _record_failure(run_dir: Path, err: MupoError) -> None:
    record = {"type": type(err).__name__, "message": str(err)}
    (run_dir / FAILURE_FILE).write_text(json.dumps(record) + "\n")
