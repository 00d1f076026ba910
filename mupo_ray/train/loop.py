"""The training loop, as every Ray Train worker runs it (SPMD).

Lines marked C are collective: all ranks reach them, a rank without data too. A step is numbered by
the updates before it; metrics of step s are logged as s + 1 finished steps, the base model's
evaluation as 0.
"""

from __future__ import annotations

import gc
import logging
import time
from typing import TYPE_CHECKING, Any

import ray
import ray.train
from ray.exceptions import RayActorError

from mupo_ray.errors import DataError, MupoError, TrainingError, WeightSyncError
from mupo_ray.evaluation.during_training import eval_metrics, evaluate
from mupo_ray.evaluation.samples import save_problems
from mupo_ray.files import write_json
from mupo_ray.runs.folder import FAILURE_FILE, STOP_FILE, RunState, keep_latest
from mupo_ray.runs.ledger import LedgerEntry
from mupo_ray.runs.records import cohort_rows, save_rows
from mupo_ray.train import checkpoint
from mupo_ray.train.batch import TrainItem
from mupo_ray.train.clock import Clock
from mupo_ray.train.collective import from_rank_zero, gather_objects
from mupo_ray.train.stages import embed_step, sample_step
from mupo_ray.train.summary import StepRecord, join, record_step
from mupo_ray.train.update import train_step
from mupo_ray.train.weights import iter_weights
from mupo_ray.train.worker import Worker
from mupo_ray.types import own_parts

if TYPE_CHECKING:
    from mupo_ray.train.board import BoardHandle, RunTask
    from mupo_ray.types import ScoredCohort

logger = logging.getLogger(__name__)

_POLL_S = 0.1
_ANSWER_S = 60.0
_FATAL = (DataError, TrainingError)


def train_runs(board: BoardHandle) -> None:
    """Train the runs of a session one after another; what Ray Train runs on every worker.

    Args:
        board: handle of the session's `SessionBoard`.
    """
    is_first = ray.train.get_context().get_world_rank() == 0
    while True:
        # Every rank takes part each time, so that none waits longer than a collective may.
        task: Any = from_rank_zero(_take(board) if is_first else None)  # C
        if task == "end":
            return
        if isinstance(task, str):
            time.sleep(_POLL_S)
            continue
        try:
            _run(task, board)
        except Exception as err:
            name = type(err).__name__ if isinstance(err, MupoError) else TrainingError.__name__
            ray.get(board.note.remote({"type": name, "message": str(err)}), timeout=_ANSWER_S)
            raise
        # The policy of the next run needs the memory.
        gc.collect()
        if is_first:
            ray.get(board.finish.remote(), timeout=_ANSWER_S)


def _run(task: RunTask, board: BoardHandle) -> None:
    """Train one run."""
    run_dir = task.config.run_dir
    if (run_dir / FAILURE_FILE).exists():
        # Ray Train restarts whatever fails; the driver reads the reason once this returns.
        return
    worker: Worker | None = None
    try:
        worker = Worker.start(task, board)
        _train(worker, task.stop_after_step, board)
    except MupoError as err:
        if isinstance(err, _FATAL) or getattr(err, "is_fatal", False):
            write_json(run_dir / FAILURE_FILE, {"type": type(err).__name__, "message": str(err)})
        raise
    finally:
        if worker is not None:
            worker.close()


def _take(board: BoardHandle) -> RunTask | str:
    try:
        taken: RunTask | str = ray.get(board.take.remote(), timeout=_ANSWER_S)
    except RayActorError:
        # The driver ended without a word; Ray Train would restart a worker that fails for ever.
        return "end"
    return taken


def _train(w: Worker, stop_after_step: int | None, board: BoardHandle) -> None:
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
        sampled = sample_step(  # C
            config,
            step,
            stream=w.stream,
            encoder=w.encoder,
            pool=w.pool,
            verifier=w.verifier,
            clock=clock,
        )
        with clock("embed"):
            embedded = embed_step(sampled.cohorts, w.method, w.embedder, config.embedder.on_failure)
        with clock("score"):
            scored = w.method.score(sampled.cohorts, embedded.embeddings, step)
        with clock("encode"):
            prompts = w.encoder.take([s.cohort.prompt for s in scored])
            items = [TrainItem.from_scored(s, p) for s, p in zip(scored, prompts, strict=True)]
        with clock("update"):
            stats = train_step(w.policy, w.reference, items, w.method)  # C
        _check_agreement(config.sync.max_logprob_diff, stats, step)
        with clock("sync"):
            local = _broadcast(w, step + 1)  # C
        parts = own_parts(w.method.metrics_declared)
        record = join(gather_objects(record_step(scored, sampled, embedded, parts)))  # C
        stats |= record.metrics()
        local |= w.method.metrics(step) | w.pool_metrics()

        is_last = step + 1 == config.train.num_steps or step + 1 == stop_after_step
        if w.eval_prompts is not None and (is_last or (step + 1) % config.eval.every_steps == 0):
            with clock("eval"):
                stats |= _evaluate(w, step + 1)  # C
            is_last = is_last or w.collapse.stop_reason is not None
        # All that is the same on all ranks; times and counters of a rank are not.
        w.method.observe(stats, step)
        _record(w, step, scored, record, stats | local, clock)
        clock = Clock()
        # After all records of the step: a resumed run drops those behind its checkpoint and makes
        # them again, but could not make up for ones that a kill left out before it.
        if is_last or (step + 1) % config.checkpoint.every_steps == 0:
            with clock("checkpoint"):
                _save(w, step + 1)  # C
        if is_last:
            _record_stop(w, step + 1, w.collapse.stop_reason)
            return


def _record(
    w: Worker,
    step: int,
    scored: list[ScoredCohort],
    record: StepRecord,
    stats: dict[str, float],
    clock: Clock,
) -> None:
    """Keep what the step came to: ledger, cohorts, metrics."""
    if w.ledger is not None:
        w.ledger.append(
            LedgerEntry(
                step=step,
                policy_version=step,
                positions=[position for position, _ in record.order],
                prompt_ids=[prompt_id for _, prompt_id in record.order],
            )
        )
    _save_cohorts(w, step, scored)
    stats |= clock.metrics()
    stats["rollout/tokens_per_s"] = record.num_tokens / stats["time/rollout_s"]
    _log(w, step + 1, stats)


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
    metrics = from_rank_zero(eval_metrics(problems, config.name, config.pass_k))
    seen = w.collapse.observe(version, metrics)
    if w.rank == 0:
        for line in seen.warnings:
            logger.warning("%s", line)
    return metrics | seen.metrics


def _save(w: Worker, step: int) -> None:
    """Write a checkpoint into the run's folder, and let old ones go (C)."""
    state = RunState(step=step, stream_position=w.stream.position, config_hash=w.config_hash)
    checkpoint.save(w.policy, w.run_dir / f"step_{step:06d}", state, w.method)
    if w.rank == 0:
        keep_latest(w.run_dir, w.config.checkpoint.keep)


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


def _asked_to_stop(w: Worker, board: BoardHandle) -> str | None:
    """Why the driver wants the run to end (C)."""
    reason: str | None = from_rank_zero(
        ray.get(board.stop_reason.remote(), timeout=_ANSWER_S) if w.rank == 0 else None
    )
    return reason


def _record_stop(w: Worker, step: int, reason: str | None) -> None:
    """Say why the run ends before its last step, where there is a reason."""
    if w.rank == 0 and reason is not None and step < w.config.train.num_steps:
        write_json(w.run_dir / STOP_FILE, {"step": step, "message": reason})
