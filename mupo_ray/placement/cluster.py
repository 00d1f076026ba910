"""What a cluster has: nodes with CPUs, GPUs and memory, live or described in a few characters."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from mupo_ray.errors import ConfigError

GIB = 2**30

# CPUs and host memory for each GPU of a described node, a modest cloud machine.
_CPUS_PER_GPU = 12
_HOST_GIB_PER_GPU = 128

_GPU_SPEC = re.compile(
    r"(?P<nodes>\d+)x(?P<gpus>\d+)x(?P<card>[A-Za-z][A-Za-z0-9]*)-(?P<card_gib>\d+)G"
    r"(?:/(?P<cpus>\d+)cpu-(?P<host_gib>\d+)G)?"
)
_CPU_SPEC = re.compile(r"(?P<nodes>\d+)x(?P<cpus>\d+)cpu-(?P<host_gib>\d+)G")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine."""

    name: str
    """For people: `node 0`, or a live node's address."""
    node_id: str | None = None
    """Ray's id; None where described."""
    cpus: float
    """Free CPUs."""
    gpus: float = 0.0
    """Free GPUs."""
    total_cpus: float
    total_gpus: float = 0.0
    memory_bytes: int | None
    """Memory for processes and the object store; None where unknown."""
    card: str | None = None
    """Kind of the GPUs."""
    card_bytes: int | None = None
    """Memory of each GPU; None where unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """A cluster at one moment."""

    nodes: tuple[Node, ...]

    def emptied(self) -> ClusterView:
        """The same cluster with nothing running on it."""
        return ClusterView(
            nodes=tuple(replace(n, cpus=n.total_cpus, gpus=n.total_gpus) for n in self.nodes)
        )

    def __str__(self) -> str:
        cpus = sum(n.cpus for n in self.nodes)
        gpus = sum(n.gpus for n in self.nodes)
        count = len(self.nodes)
        return f"{count} node{'s' * (count != 1)} with {cpus:g} CPU and {gpus:g} GPU free"


def describe_cluster(spec: str) -> ClusterView:
    """A cluster from a description.

    Args:
        spec: `NODESxGPUSxKIND-MEMORYG`, as `1x8xH100-80G`, by default with 12 CPUs and 128 GiB of
            host memory a GPU, else with `/CPUScpu-MEMORYG` behind it; or without GPUs
            `NODESxCPUScpu-MEMORYG`, as `1x2cpu-24G`. Counts and memory are those of one node, GPU
            memory that of one GPU, in GiB.

    Raises:
        ConfigError: it reads otherwise, or a count is 0.
    """
    match = _GPU_SPEC.fullmatch(spec) or _CPU_SPEC.fullmatch(spec)
    parts = match.groupdict() if match else {}
    if not parts or any(value and set(value) == {"0"} for value in parts.values()):
        raise ConfigError(
            f"cluster {spec!r}: should read like 1x8xH100-80G, 1x8xH100-80G/96cpu-1024G or "
            "2x16cpu-64G"
        )
    gpus = int(parts.get("gpus") or 0)
    cpus = int(parts["cpus"] or gpus * _CPUS_PER_GPU)
    host_gib = int(parts["host_gib"] or gpus * _HOST_GIB_PER_GPU)
    card_gib = parts.get("card_gib")
    return ClusterView(
        nodes=tuple(
            Node(
                name=f"node {i}",
                cpus=cpus,
                gpus=gpus,
                total_cpus=cpus,
                total_gpus=gpus,
                memory_bytes=host_gib * GIB,
                card=parts.get("card"),
                card_bytes=int(card_gib) * GIB if card_gib else None,
            )
            for i in range(int(parts["nodes"]))
        )
    )
