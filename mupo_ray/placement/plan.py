"""Where trainers, engines, embedders and data tasks go, and how weights travel between them.

    config + cluster --plan--> PlacementPlan --render--> table   (pure; a described one will do)
    config + live Ray --wait_for_plan--> PlacementPlan, or PlacementError after a time limit

On CPU every bundle has CPUs of its own and weights go through Ray's object store. On GPUs:

    split       engines reserve GPUs of their own, and start before the trainers, which would else
                take GPUs from all nodes; weights go by NCCL
    colocated   Ray Train gives each trainer a card and shares its placement group with nobody, so
                an engine reserves no GPU: it starts after the trainers, bound to their node, with
                CUDA_VISIBLE_DEVICES set to their cards (`actor_options`); weights go by CUDA IPC

Nothing here asks Ray for a placement group, so a plan that cannot be met leaves nothing pending.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mupo_ray.errors import PlacementError
from mupo_ray.placement import memory
from mupo_ray.placement.cluster import GIB, ClusterView, Node
from mupo_ray.placement.model_size import find_size
from mupo_ray.placement.table import card_verdicts, host_verdicts, ranges, render
from mupo_ray.placement.types import Bundle, Card, PlacementPlan, Role, Transport

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from mupo_ray.config import Config

__all__ = [
    "Bundle",
    "Card",
    "ClusterView",
    "PlacementPlan",
    "Role",
    "Transport",
    "actor_options",
    "card_verdicts",
    "host_verdicts",
    "live_cluster",
    "plan",
    "render",
    "transport_of",
    "wait_for_plan",
]

logger = logging.getLogger(__name__)

# Memory of the GPUs that Ray names without it, GiB. A100 has two sizes under one name.
_CARD_GIB = {
    "T4": 16,
    "L4": 24,
    "A10G": 24,
    "L40S": 48,
    "A100-40G": 40,
    "A100-80G": 80,
    "H100": 80,
    "H20": 96,
    "H200": 141,
    "B200": 180,
}


def plan(
    config: Config, cluster: ClusterView, roles: Collection[Role] = tuple(Role)
) -> PlacementPlan:
    """Place every bundle of a run.

    Bundles go to the first node that has room, those with most GPUs first.

    Args:
        config: the run's configuration.
        cluster: what is free.
        roles: what to place; without trainers nothing may share their cards.

    Returns:
        The plan, with a node for every bundle.

    Raises:
        PlacementError: a bundle finds no room; each is named with what is required and available.
    """
    wanted = [bundle for bundle in _bundles(config, cluster) if bundle.role in roles]
    free = list(cluster.nodes)
    placed: dict[str, Bundle] = {}
    lacks: dict[str, list[str]] = {}
    for bundle in sorted(wanted, key=lambda b: (len(b.cards_of) > 0, -b.gpus)):
        nodes: Sequence[int] = range(len(free))
        if bundle.cards_of:
            owners = [placed.get(f"{Role.TRAINER} {rank}") for rank in bundle.cards_of]
            owned = {owner.node for owner in owners if owner is not None and owner.node is not None}
            if any(owner is None for owner in owners):
                continue  # its trainer's lack is named already
            if len(owned) > 1:
                ranks = ", ".join(map(str, bundle.cards_of))
                lack = f"required the GPUs of trainers {ranks} on one node, available on several"
                lacks.setdefault(lack, []).append(bundle.name)
                continue
            nodes = [node for node in owned if node is not None]
        at = next((i for i in nodes if not _lacking(bundle, free[i], config)), None)
        if at is None:
            lack = _nearest(bundle, [free[i] for i in nodes], config)
            lacks.setdefault(lack, []).append(bundle.name)
            continue
        placed[bundle.name] = replace(bundle, node=at, node_id=free[at].node_id)
        free[at] = _take(free[at], bundle)
    reasons = [f"{ranges(names)}: {lack}" for lack, names in lacks.items()]
    if not lacks and config.placement.check_memory:
        reasons = [v for v in card_verdicts(tuple(placed.values()), cluster) if "exceeds" in v]
    if reasons:
        raise PlacementError(
            f"the cluster cannot host the plan; it has {cluster}\n"
            + "\n".join(f"  {lack}" for lack in reasons)
            + f"\n{_advice(config)}"
        )
    return PlacementPlan(
        device=config.run.device,
        mode=config.placement.mode,
        bundles=tuple(placed[b.name] for b in wanted),
    )


def transport_of(config: Config) -> Transport:
    """How engines get new weights: as configured, or by placement where `auto`."""
    if config.sync.transport != "auto":
        return config.sync.transport
    if config.run.device == "cpu":
        return "object_store"
    return "ipc" if config.placement.mode == "colocated" else "nccl"


def live_cluster() -> ClusterView:
    """The cluster that this process is connected to (Ray 2.60).

    Free CPUs and GPUs may lag behind actors that ended within the last second.
    """
    import ray
    from ray._private.state import available_resources_per_node

    available = available_resources_per_node()
    nodes = []
    for info in ray.nodes():
        if not info["Alive"]:
            continue
        total, free = info["Resources"], available.get(info["NodeID"], {})
        card = next((k.partition(":")[2] for k in total if k.startswith("accelerator_type:")), None)
        gib = _CARD_GIB.get(card or "")
        nodes.append(
            Node(
                name=f"node {info['NodeManagerAddress']}",
                node_id=info["NodeID"],
                cpus=free.get("CPU", 0.0),
                gpus=free.get("GPU", 0.0),
                total_cpus=total.get("CPU", 0.0),
                total_gpus=total.get("GPU", 0.0),
                # The object store takes its share only as it fills.
                memory_bytes=int(total.get("memory", 0) + total.get("object_store_memory", 0)),
                card=card,
                card_bytes=None if gib is None else gib * GIB,
            )
        )
    return ClusterView(nodes=tuple(nodes))


def wait_for_plan(
    config: Config, timeout_s: float | None = None, *, roles: Collection[Role] = tuple(Role)
) -> PlacementPlan:
    """Wait until the live cluster has room for the plan.

    Says what is missing at once and every 30 s, sooner where the limit is short.

    Args:
        config: the run's configuration.
        timeout_s: longest wait; `placement.timeout_s` where None.
        roles: as for `plan`.

    Raises:
        PlacementError: no room by then; names each bundle with what is required and available.
    """
    limit = config.placement.timeout_s if timeout_s is None else timeout_s
    start = time.monotonic()
    next_word = 0.0
    while True:
        try:
            cluster = live_cluster()
            placed = plan(config, cluster, roles)
            for verdict in (
                *card_verdicts(placed.bundles, cluster),
                *host_verdicts(placed.bundles, cluster),
            ):
                if "exceeds" in verdict:
                    logger.warning("estimated memory of %s", verdict)
            return placed
        except PlacementError as err:
            waited = time.monotonic() - start
            if waited >= limit:
                raise PlacementError(f"gave up after {limit:g} s: {err}") from None
            if waited >= next_word:
                logger.warning("waiting for resources, %.0f of %.0f s: %s", waited, limit, err)
                next_word = waited + min(30.0, limit / 3)
            time.sleep(min(0.5, max(0.01, limit - waited)))


def actor_options(bundle: Bundle, cards: Sequence[Card] = ()) -> dict[str, Any]:
    """Ray options for the actor of an engine or embedder.

    Args:
        bundle: from the plan.
        cards: by rank, what the started trainers report; needed where the bundle uses their cards.

    Raises:
        PlacementError: the trainers whose cards it uses are not on one node.
        ValueError: a card is missing.
    """
    options: dict[str, Any] = {"num_cpus": bundle.cpus, "num_gpus": bundle.gpus}
    if not bundle.cards_of:
        if bundle.gpus > 0 and bundle.node_id is not None:
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(
                bundle.node_id, soft=True
            )
        return options
    if max(bundle.cards_of) >= len(cards):
        raise ValueError(
            f"{bundle.name} uses the cards of trainers {bundle.cards_of}, got {len(cards)} cards"
        )
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    mine = [cards[rank] for rank in bundle.cards_of]
    nodes = sorted({card.node_id for card in mine})
    if len(nodes) != 1:
        raise PlacementError(
            f"{bundle.name} needs the cards of trainers {bundle.cards_of} on one node, got nodes "
            f"{', '.join(nodes)}; lower rollout.tensor_parallel_size or use placement.mode split"
        )
    options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(nodes[0], soft=False)
    visible = ",".join(card.gpu for card in mine)
    options["runtime_env"] = {"env_vars": {"CUDA_VISIBLE_DEVICES": visible}}
    return options


def _bundles(config: Config, cluster: ClusterView) -> list[Bundle]:
    size = find_size(config.model.path)
    on_gpu = config.run.device == "cuda"
    shares = on_gpu and config.placement.mode == "colocated"
    rollout, embed, ways = config.rollout, config.embedder, config.rollout.tensor_parallel_size
    card_bytes = min((n.card_bytes for n in cluster.nodes if n.card_bytes), default=None)
    gpu, host = memory.trainer(size, config)
    bundles = [
        Bundle(
            role=Role.TRAINER,
            index=i,
            cpus=config.train.cpus_per_worker,
            gpus=1.0 if on_gpu else 0.0,
            gpu_memory=gpu,
            host_memory=host,
        )
        for i in range(config.train.num_workers)
    ]
    gpu, host = memory.engine(size, config, card_bytes)
    bundles += [
        Bundle(
            role=Role.ENGINE,
            index=i,
            cpus=rollout.cpus_per_engine,
            gpus=float(ways) if on_gpu and not shares else 0.0,
            cards_of=tuple(range(i * ways, (i + 1) * ways)) if shares else (),
            transport=transport_of(config),
            gpu_memory=gpu,
            host_memory=host,
        )
        for i in range(rollout.num_engines)
    ]
    gpu, host = memory.embedder(config)
    uses_gpu = embed.gpus_per_actor > 0
    bundles += [
        Bundle(
            role=Role.EMBEDDER,
            index=i,
            cpus=embed.cpus_per_actor,
            gpus=embed.gpus_per_actor if not shares else 0.0,
            cards_of=(i % config.train.num_workers,) if shares and uses_gpu else (),
            gpu_memory=gpu,
            host_memory=host,
        )
        for i in range(embed.num_actors)
    ]
    # Ray Data's tasks come and go; with room for one at a time the stream moves.
    bundles.append(
        Bundle(
            role=Role.DATA, index=0, cpus=config.data.cpus_per_task, gpu_memory={}, host_memory={}
        )
    )
    return bundles


def _lacking(bundle: Bundle, node: Node, config: Config) -> list[str]:
    """What a node is short of for a bundle; CPUs are counted to Ray's 1/10000."""
    lacks = []
    for kind, need, has in (("GPU", bundle.gpus, node.gpus), ("CPU", bundle.cpus, node.cpus)):
        if need > has + 5e-5:
            lacks.append(f"required {need:g} {kind}, available {max(has, 0):g} {kind}")
    host = sum(bundle.host_memory.values())
    if config.placement.check_memory and node.memory_bytes is not None and host > node.memory_bytes:
        lacks.append(
            f"required {host / GIB:.1f} GiB of memory (estimate), available "
            f"{max(node.memory_bytes, 0) / GIB:.1f} GiB"
        )
    return lacks


def _nearest(bundle: Bundle, nodes: Sequence[Node], config: Config) -> str:
    """The shortest list of lacks over all nodes."""
    if not nodes:
        return f"required {bundle.gpus:g} GPU and {bundle.cpus:g} CPU, available 0 nodes"
    lacks, node = min(
        ((_lacking(bundle, n, config), n) for n in nodes),
        key=lambda pair: (len(pair[0]), -pair[1].gpus, -pair[1].cpus),
    )
    return f"{' and '.join(lacks)} on the best node ({node.name})"


def _take(node: Node, bundle: Bundle) -> Node:
    host = sum(bundle.host_memory.values())
    return replace(
        node,
        cpus=node.cpus - bundle.cpus,
        gpus=node.gpus - bundle.gpus,
        memory_bytes=None if node.memory_bytes is None else node.memory_bytes - host,
    )


def _advice(config: Config) -> str:
    ask = (
        f"asked for: train.num_workers {config.train.num_workers} x "
        f"{config.train.cpus_per_worker:g} CPU, rollout.num_engines {config.rollout.num_engines} x "
        f"{config.rollout.cpus_per_engine:g} CPU, embedder.num_actors {config.embedder.num_actors} "
        f"x {config.embedder.cpus_per_actor:g} CPU"
    )
    if config.run.device == "cuda":
        ask += f"; {config.placement.mode} on GPU"
    return f"{ask}; lower these or add nodes"
