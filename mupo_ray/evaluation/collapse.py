"""The collapse alarm: diversity and effective strategies against their values at step 0.

    evaluation at step 0 -> reference
    each later one       -> share of it that is left -> below its limit? -> metrics, lines, action

Of diversity d the share left is d / d_0. Effective strategies e cannot fall below 1, when all
responses reason one way, so the share is of the strategies beyond the first, (e - 1) / (e_0 - 1).
With e / e_0 a run that starts at 1.9 could lose all but one way and still keep more than half.

Nothing is stored but metrics: a resumed run reads the reference, the shares and the weight's factor
back from `metrics.jsonl`. All ranks hold equal watches and see the same numbers, so they decide
alike; one of them speaks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mupo_ray.settings.sections import CollapseConfig

_ALARM = "collapse/alarm"
_FACTOR = "collapse/weight_factor"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measure:
    title: str
    key: str
    """Of its value, after `eval/<set>/`."""
    ratio_key: str
    floor: float
    """Its value once all responses reason one way."""
    share: float
    """The alarm's limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """What an evaluation shows of a collapse."""

    metrics: dict[str, float]
    """Empty at step 0, and where nothing could be compared."""
    warnings: tuple[str, ...] = ()
    """What there is to say, each thing once: a new fall, a raised weight, an alarm that is off."""


class CollapseWatch:
    """Compares each evaluation of a run with that of step 0.

    Args:
        config: limits and action.
        set_name: of the evaluation set.
    """

    def __init__(self, config: CollapseConfig, set_name: str) -> None:
        self._config = config
        self._set_name = set_name
        self._measures = (
            _Measure(
                title="diversity",
                key="diversity",
                ratio_key="collapse/diversity_ratio",
                floor=0.0,
                share=config.diversity_share,
            ),
            _Measure(
                title="effective strategies beyond the first",
                key="effective_strategies",
                ratio_key="collapse/strategies_ratio",
                floor=1.0,
                share=config.strategies_share,
            ),
        )
        self._spread: dict[str, float] = {}
        """Measure -> how far above its floor it was at step 0; none where it was not measured."""
        self._ratios: dict[str, float] = {}
        """Measure -> share left at the last evaluation that had it."""
        self.weight_factor = 1.0
        """What the diversity weight is multiplied by from the next step on."""

    def restore(self, rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
        """Take up where a run stands.

        Args:
            rows: of its `metrics.jsonl` up to the step it resumes from; none for a new run.

        Returns:
            What there is to say.
        """
        if not rows:
            return ()
        lines = self._refer_to(rows[0] if rows[0]["step"] == 0 else {})
        for row in rows:
            for m in self._measures:
                if (ratio := _finite(row.get(m.ratio_key))) is not None:
                    self._ratios[m.key] = ratio
            self.weight_factor = _finite(row.get(_FACTOR)) or self.weight_factor
        return lines

    def observe(self, step: int, measured: Mapping[str, float]) -> Sighting:
        """Take note of an evaluation.

        Args:
            step: finished steps.
            measured: its metrics; one whose embedding failed has neither measure.
        """
        if step == 0:
            return Sighting(metrics={}, warnings=self._refer_to(measured))
        before = self._below()
        ratios = self._ratios_of(measured)
        if not ratios:
            return Sighting(metrics={})
        self._ratios |= ratios
        below = self._below()
        lines = [
            f"collapse alarm at step {step}: {m.title} at {self._ratios[m.key]:.2f} of step 0's, "
            f"below {m.share:g}"
            for m in below
            if m not in before
        ]
        metrics = {m.ratio_key: ratios[m.key] for m in self._measures if m.key in ratios}
        metrics[_ALARM] = float(bool(below))
        if self._config.action == "raise_diversity_weight":
            lines += self._raise_weight(step) if below else []
            metrics[_FACTOR] = self.weight_factor
        return Sighting(metrics=metrics, warnings=tuple(lines))

    @property
    def stop_reason(self) -> str | None:
        """Why the run should end here; None where it should go on."""
        below = self._below()
        if self._config.action != "stop" or not below:
            return None
        left = " and ".join(
            f"{m.title} at {self._ratios[m.key]:.2f} of step 0's, below {m.share:g}" for m in below
        )
        return f"collapse alarm: {left}; to go on, give it again with collapse.action=none"

    def _refer_to(self, values: Mapping[str, Any]) -> tuple[str, ...]:
        """Keep step 0's values; what has nothing to lose is not watched."""
        for m in self._measures:
            value = _finite(values.get(f"eval/{self._set_name}/{m.key}"))
            if value is not None and value > m.floor:
                self._spread[m.key] = value - m.floor
        if self._spread:
            return ()
        return (
            f"the collapse alarm is off: step 0 has no diversity of {self._set_name} to compare "
            "with",
        )

    def _ratios_of(self, values: Mapping[str, float]) -> dict[str, float]:
        ratios = {}
        for m in self._measures:
            value = _finite(values.get(f"eval/{self._set_name}/{m.key}"))
            if value is not None and m.key in self._spread:
                ratios[m.key] = max(0.0, value - m.floor) / self._spread[m.key]
        return ratios

    def _below(self) -> list[_Measure]:
        return [m for m in self._measures if self._ratios.get(m.key, math.inf) < m.share]

    def _raise_weight(self, step: int) -> list[str]:
        """At each evaluation that is below, not at the first alone: one step may not be enough."""
        old = self.weight_factor
        self.weight_factor = min(old * self._config.weight_factor, self._config.max_weight_factor)
        if self.weight_factor == old:
            return []
        return [
            f"diversity weight from step {step} on: {self.weight_factor:g} times its schedule, "
            f"{old:g} times before"
        ]


def _finite(value: float | None) -> float | None:
    """NaN, in `metrics.jsonl` null, is no value."""
    return value if value is not None and math.isfinite(value) else None
