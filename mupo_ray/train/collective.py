"""Small collectives over trainer ranks; every function here is collective (C)."""

from __future__ import annotations

from typing import TypeVar

import torch.distributed as dist

T = TypeVar("T")


def gather_objects(mine: T) -> list[T]:
    """Every rank's object, by rank, on every rank (C)."""
    if dist.get_world_size() == 1:
        return [mine]
    found: list[T | None] = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    return found  # type: ignore[return-value]


def from_rank_zero(mine: T | None) -> T:
    """Rank 0's object on every rank (C)."""
    box: list[T | None] = [mine]
    if dist.get_world_size() > 1:
        dist.broadcast_object_list(box, src=0)
    return box[0]  # type: ignore[return-value]


def total(mine: int) -> int:
    """Sum over ranks, on every rank (C)."""
    return sum(gather_objects(mine))
