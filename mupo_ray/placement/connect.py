"""Joins the Ray cluster of this process's environment, or starts a local one."""

from __future__ import annotations

import logging
import os
import socket
from typing import TYPE_CHECKING, Any

import ray
from ray._private.services import canonicalize_bootstrap_address

from mupo_ray.errors import PlacementError

if TYPE_CHECKING:
    from collections.abc import Mapping

logger = logging.getLogger(__name__)

_START_ATTEMPTS = 3
_ANSWER_S = 10.0


def join_or_start(local: Mapping[str, Any] | None = None, **options: Any) -> None:
    """Join the cluster that `RAY_ADDRESS` or the last `ray start` names, or start a local one.

    Nothing happens where Ray is connected.

    Args:
        local: of `ray.init`, for a local one alone.
        options: of `ray.init`.

    Raises:
        PlacementError: the cluster does not answer.
    """
    if ray.is_initialized():
        return
    if not is_joining():
        options |= local or {}
    for attempts_left in reversed(range(_START_ATTEMPTS)):
        try:
            ray.init(namespace="mupo_ray", logging_level=logging.WARNING, **options)
            return
        except Exception as err:
            # Ray gives a local node 30 s to come up, which a busy machine can exceed (Ray 2.60).
            if "timed out during startup" not in str(err) or attempts_left == 0:
                raise
            logger.warning("Ray did not start within its own limit; trying again")
            ray.shutdown()


def is_joining() -> bool:
    """Whether there is a cluster to join.

    Raises:
        PlacementError: it does not answer; Ray itself would try for a quarter of an hour.
    """
    named = os.environ.get("RAY_ADDRESS", "")
    if "://" in named:
        return True
    address = canonicalize_bootstrap_address(None)
    if address is None:
        return False
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S).close()
    except OSError as err:
        source = "RAY_ADDRESS" if named else "the last `ray start` on this machine"
        raise PlacementError(
            f"no Ray cluster answers at {address}, which {source} names ({err}); start it, or set "
            "RAY_ADDRESS=local to start one for this process alone"
        ) from None
    return True
