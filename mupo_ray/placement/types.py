"""The values of a placement plan."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from mupo_ray.placement import memory

Transport = Literal["object_store", "nccl", "ipc"]


class Role(StrEnum):
    """What runs in a bundle."""

    TRAINER = "trainer"
    ENGINE = "engine"
    EMBEDDER = "embedder"
    DATA = "data task"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """What one actor (or task) reserves, and where the plan puts it."""

    role: Role
    index: int
    cpus: float
    gpus: float = 0.0
    """GPUs it reserves with Ray; 0 for what shares trainers' cards."""
    cards_of: tuple[int, ...] = ()
    """Ranks of the trainers whose cards it uses without reserving them."""
    transport: Transport | None = None
    """How an engine gets new weights."""
    node: int | None = None
    """Place in the cluster's list of nodes; None until placed."""
    node_id: str | None = None
    """Ray's id of that node, where the cluster is a live one."""
    gpu_memory: memory.Parts
    """Estimate for each of its GPUs, bytes by use."""
    host_memory: memory.Parts
    """Estimate on its node, bytes by use."""

    @property
    def name(self) -> str:
        """`engine 0`."""
        return f"{self.role} {self.index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementPlan:
    """All bundles of a run; trainers by rank, then engines, embedders and data tasks."""

    device: str
    mode: str
    bundles: tuple[Bundle, ...]

    def of(self, role: Role) -> tuple[Bundle, ...]:
        """Bundles of one role, by index."""
        return tuple(b for b in self.bundles if b.role is role)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for the run's record."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """The GPU that a started trainer reports."""

    node_id: str
    """`ray.get_runtime_context().get_node_id()`."""
    gpu: str
    """`ray.get_runtime_context().get_accelerator_ids()["GPU"][0]`."""
