"""How much memory the demo takes: this process and all below it."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass

import psutil

_SAMPLE_EVERY_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Resident memory of a tree of processes, in bytes."""

    rss_bytes: int = 0
    """Pages that processes share count once for each: an upper bound."""
    pss_bytes: int = 0
    """Shared pages count once (Linux; elsewhere the same as `rss_bytes`)."""


class MemoryWatch(threading.Thread):
    """Resident memory of this process and all below it, when its sum was largest."""

    def __init__(self, sample_every_s: float = _SAMPLE_EVERY_S) -> None:
        super().__init__(name="memory-watch", daemon=True)
        self._sample_every_s = sample_every_s
        self._stop_event = threading.Event()
        self._peak = Memory()

    def run(self) -> None:
        """Sample until `stop`."""
        root = psutil.Process()
        while not self._stop_event.wait(self._sample_every_s):
            rss = 0
            processes = [root, *root.children(recursive=True)]
            for process in processes:
                with contextlib.suppress(psutil.Error):  # It may have ended.
                    rss += process.memory_info().rss
            if rss > self._peak.rss_bytes:
                self._peak = Memory(rss_bytes=rss, pss_bytes=_pss(processes))

    def stop(self) -> Memory:
        """End watching; the peak."""
        self._stop_event.set()
        self.join()
        return self._peak


def _pss(processes: list[psutil.Process]) -> int:
    """Memory with shared pages counted once; takes the kernel 10 ms a large process."""
    total = 0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            memory = process.memory_full_info()
            total += getattr(memory, "pss", memory.rss)
    return total
