"""What one training rank holds between steps."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray
import ray.train

from mupo_ray.data.encode import PromptEncoder
from mupo_ray.data.render import PromptRenderer
from mupo_ray.data.stream import PromptStream, load_prompts
from mupo_ray.data.table import open_table
from mupo_ray.evaluation.collapse import CollapseWatch
from mupo_ray.files import read_jsonl
from mupo_ray.methods import Method, make_method
from mupo_ray.observability.tracker import Tracker, open_trackers
from mupo_ray.placement.plan import Card
from mupo_ray.rewards.verdicts import Verifier
from mupo_ray.rollout.embedder import EmbedderPool
from mupo_ray.rollout.pool import EnginePool, placeholder_ids
from mupo_ray.rollout.services import Services, wait_for_services
from mupo_ray.runs.folder import latest_complete
from mupo_ray.runs.ledger import Ledger
from mupo_ray.sync.broadcast import ObjectStoreChannel, WeightChannel
from mupo_ray.train import checkpoint
from mupo_ray.train.collective import from_rank_zero
from mupo_ray.train.encoding import EncodeAhead
from mupo_ray.train.policy import (
    DeepSpeedPolicy,
    LogprobModel,
    init_distributed,
    make_reference,
)
from mupo_ray.train.sharing import make_policy

if TYPE_CHECKING:
    from pathlib import Path

    from mupo_ray.config import Config
    from mupo_ray.train.board import BoardHandle, RunTask
    from mupo_ray.types import Prompt

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Worker:
    """Everything of one rank; made by `start`, ended by `close`."""

    config: Config
    config_hash: str
    run_dir: Path
    rank: int
    world_size: int
    policy: DeepSpeedPolicy
    reference: LogprobModel | None
    method: Method[Any]
    stream: PromptStream
    eval_prompts: list[Prompt] | None
    pool: EnginePool
    channel: WeightChannel
    embedder: EmbedderPool
    verifier: Verifier
    encoder: EncodeAhead
    tracker: Tracker
    ledger: Ledger | None
    """Rank 0's."""
    collapse: CollapseWatch
    start_step: int

    @classmethod
    def start(cls, task: RunTask, board: BoardHandle) -> Worker:
        """Build or resume everything (C).

        Args:
            task: the run.
            board: of the session.

        Raises:
            MupoError: the model, data, engines or checkpoint cannot be had.
        """
        config = task.config
        context = ray.train.get_context()
        rank, world_size = context.get_world_rank(), context.get_world_size()
        # Ray Train puts its handlers at the root, where it prints every report with all metrics.
        logging.getLogger().setLevel(logging.WARNING)
        logging.getLogger("mupo_ray").setLevel(logging.INFO if rank == 0 else logging.WARNING)
        ray.get(
            board.report_card.remote(rank, _card(config)),
            timeout=config.train.collective_timeout_s,
        )
        init_distributed(config.run.device, config.train.collective_timeout_s)

        renderer = PromptRenderer.from_config(config)
        policy = make_policy(config)
        reference = make_reference(policy)
        method = make_method(config)
        start_step, position = _resume(policy, method, config)
        services = wait_for_services(board, config.rollout.start_timeout_s)
        channel = make_channel(config, services, rank)
        # Opening the record cuts it back to the step that the run resumes from.
        tracker = _tracker(config, method, rank, start_step)
        collapse: CollapseWatch = from_rank_zero(_collapse_watch(config) if rank == 0 else None)
        stream = PromptStream(
            open_table(config.data.train),
            renderer,
            seed=config.run.seed,
            position=position,
            end=position + (config.train.num_steps - start_step) * _most_prompts(config),
            rank=rank,
            world_size=world_size,
            batch_rows=config.data.batch_rows,
            cpus_per_task=config.data.cpus_per_task,
            timeout_s=config.data.timeout_s,
        )
        return cls(
            config=config,
            config_hash=task.config_hash,
            run_dir=config.run_dir,
            rank=rank,
            world_size=world_size,
            policy=policy,
            reference=reference,
            method=method,
            stream=stream,
            eval_prompts=(
                load_prompts(config.eval.path, renderer, config.eval.num_prompts)
                if config.eval.path is not None
                else None
            ),
            pool=EnginePool(
                services.engines,
                forbidden_ids=placeholder_ids(policy.model.config),
                max_num_seqs=config.rollout.max_num_seqs,
                request_timeout_s=config.rollout.request_timeout_s,
                max_restarts=config.rollout.max_restarts,
                rank=rank,
                resync=getattr(channel, "resync", None),
            ),
            channel=channel,
            embedder=EmbedderPool(services.embedders, config.embedder.timeout_s),
            verifier=Verifier.from_config(config.reward, is_think_opened=renderer.opens_think),
            encoder=EncodeAhead(
                PromptEncoder(config.model.path, config.data.min_pixels, config.data.max_pixels),
                config.data.timeout_s,
            ),
            tracker=tracker,
            ledger=_ledger(config, rank, start_step),
            collapse=collapse,
            start_step=start_step,
        )

    def pool_metrics(self) -> dict[str, float]:
        """Counters of this rank's pool and stream since the start."""
        stats = self.pool.stats
        return {
            "rollout/stale_refused": float(stats.stale_refused),
            "rollout/engine_failures": float(stats.engine_failures),
            "rollout/retried": float(stats.retried),
            "rollout/resynced": float(stats.resynced),
            "data/position": float(self.stream.position),
            "data/dropped": float(sum(len(rows) for rows in self.stream.dropped.values())),
        }

    def close(self) -> None:
        """Stop what runs in this process."""
        self.stream.close()
        self.encoder.close()
        self.verifier.close()
        self.tracker.close()


def _most_prompts(config: Config) -> int:
    """Positions that one step can take."""
    rounds = config.filter.max_rounds if config.filter.enabled else 1
    return config.data.prompts_per_step * rounds


def make_channel(config: Config, services: Services, rank: int) -> WeightChannel:
    """The transport that the placement asks for."""
    if services.transport == "object_store":
        return ObjectStoreChannel(
            engines=services.engines,
            publisher=services.publisher,
            publisher_name=services.publisher_name,
            is_sender=rank == 0,
            bucket_bytes=config.sync.bucket_mib * 2**20,
            pause=config.sync.pause,
            timeout_s=config.sync.timeout_s,
            start_timeout_s=config.rollout.start_timeout_s,
        )
    from mupo_ray.sync.native import NativeChannel

    return NativeChannel(
        services.transport,
        engines=services.engines,
        is_sender=rank == 0,
        rank=rank,
        pause=config.sync.pause,
        timeout_s=config.sync.timeout_s,
    )


def _resume(policy: DeepSpeedPolicy, method: Method[Any], config: Config) -> tuple[int, int]:
    """Finished steps and stream position of the newest whole checkpoint, loaded (C)."""
    folder = from_rank_zero(latest_complete(config.run_dir) if policy.rank == 0 else None)
    if folder is None:
        return 0, 0
    began = time.monotonic()
    state = checkpoint.load(policy, folder, method)
    logger.info("resumed %s in %.1f s", folder, time.monotonic() - began)
    return state.step, state.stream_position


def _card(config: Config) -> Card | None:
    if config.run.device == "cpu":
        return None
    context = ray.get_runtime_context()
    return Card(node_id=context.get_node_id(), gpu=context.get_accelerator_ids()["GPU"][0])


def _tracker(config: Config, method: Method[Any], rank: int, start_step: int) -> Tracker:
    if rank != 0:
        return _Silent()
    return open_trackers(
        config.run_dir,
        config.tracking.backends,
        project=config.tracking.project,
        run_name=config.run.name,
        config=config.model_dump(mode="json"),
        resume_after=start_step if start_step > 0 else -1,
        own=method.metrics_declared,
    )


def _ledger(config: Config, rank: int, start_step: int) -> Ledger | None:
    return Ledger(config.run_dir / "ledger", next_step=start_step) if rank == 0 else None


def _collapse_watch(config: Config) -> CollapseWatch:
    """The watch as the run's record leaves it; on rank 0."""
    watch = CollapseWatch(config.collapse, config.eval.name)
    if config.eval.path is None:
        logger.info("the collapse alarm is off: eval.path is null")
        return watch
    for line in watch.restore(read_jsonl(config.run_dir / "metrics.jsonl")):
        logger.warning("%s", line)
    return watch


class _Silent:
    """Ranks other than 0 record nothing."""

    def log(self, step: int, values: Any) -> None:
        pass

    def close(self) -> None:
        pass
