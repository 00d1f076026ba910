"""Files that a process holds: the kernel lets go of them however it ends.

One such file is a lock between the workers of a sweep. Others say of each worker that it lives, for
a journal file, unlike a database, has no signs of life. All hosts of a sweep see them where its
folder is on a file system with POSIX locks, as NFS is.
"""

from __future__ import annotations

import fcntl
import os
import time
from typing import TYPE_CHECKING, Self

from mupo_ray.errors import SweepError

if TYPE_CHECKING:
    from pathlib import Path

_POLL_S = 0.05
_TIMEOUT_S = 600.0


class HeldFile:
    """A file that this process holds between `take` and `let_go`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def take(self) -> None:
        """Hold the file, once nobody else does.

        Raises:
            SweepError: another process keeps it.
        """
        assert self._descriptor is None, f"{self._path} is held already"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        deadline = time.monotonic() + _TIMEOUT_S
        while not _is_taken(descriptor):
            if time.monotonic() > deadline:
                os.close(descriptor)
                raise SweepError(
                    f"{self._path}: another worker has held it for {_TIMEOUT_S:g} s; a worker "
                    "that hangs should be ended"
                )
            time.sleep(_POLL_S)
        self._descriptor = descriptor

    def let_go(self) -> None:
        """Hold it no longer; safe to call twice."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        self.take()
        return self

    def __exit__(self, *error: object) -> None:
        self.let_go()


def is_held(path: Path) -> bool:
    """Whether a living process holds a file."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        return not _is_taken(descriptor)
    finally:
        os.close(descriptor)


def _is_taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
