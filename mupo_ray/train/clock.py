"""Where a step's time goes."""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# What a step cannot do without; the rest is overhead.
_CORE_STAGES = ("rollout", "update")


class Clock:
    """Adds up wall seconds by stage, over one step."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._spent: dict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Time a stage; the same one may be entered again."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._spent[stage] += time.monotonic() - began

    def stages(self) -> dict[str, float]:
        """`time/<stage>_s`."""
        return {f"time/{stage}_s": spent for stage, spent in self._spent.items()}

    def metrics(self) -> dict[str, float]:
        """`time/<stage>_s`, `time/step_s`, and the share outside sampling and the update.

        Evaluation and checkpoints are not part of a step.
        """
        apart = self._spent.get("eval", 0.0) + self._spent.get("checkpoint", 0.0)
        step_s = time.monotonic() - self._began - apart
        core_s = sum(self._spent.get(stage, 0.0) for stage in _CORE_STAGES)
        return {
            **self.stages(),
            "time/step_s": step_s,
            "time/other_frac": max(0.0, 1.0 - core_s / step_s),
        }
