"""What trials are judged by: expressions over the metrics of a run."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from mupo_ray.errors import ConfigError
from mupo_ray.observability.metrics import check
from mupo_ray.tune.expression import Expression, parse_expression

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mupo_ray.config import Config
    from mupo_ray.tune.spec import Objective

_EVAL = re.compile(r"eval/(?P<set>[^/]+)/(?P<name>.+)")


def parse_objectives(objectives: Sequence[Objective], base: Config) -> tuple[Expression, ...]:
    """The objectives' expressions, checked against what a run of this configuration measures.

    Raises:
        ConfigError: an expression is wrong, or names a metric that no such run has.
    """
    parsed = []
    for number, objective in enumerate(objectives):
        where = f"objectives.{number}.metric"
        try:
            expression = parse_expression(objective.metric)
            if not expression.names:
                raise ConfigError(f"{objective.metric!r} names no metric; should name one at least")
            for name in expression.names:
                _check_metric(name, base)
        except (ConfigError, ValueError) as err:
            raise ConfigError(f"{where}: {err}") from None
        parsed.append(expression)
    return tuple(parsed)


def value_in(expression: Expression, row: Mapping[str, Any]) -> float | None:
    """Value of an objective in a line of `metrics.jsonl`; None where the line lacks a metric.

    NaN where a metric was not finite, or the expression has no value there.
    """
    if any(name not in row for name in expression.names):
        return None
    if any(row[name] is None for name in expression.names):
        return math.nan
    try:
        return float(expression.value(row))
    except ConfigError:
        return math.nan


def _check_metric(name: str, base: Config) -> None:
    check(name)
    found = _EVAL.fullmatch(name)
    if found is None:
        return
    if base.eval.path is None:
        raise ConfigError(f"{name} needs evaluations, got eval.path = null")
    if found["set"] != base.eval.name:
        raise ConfigError(
            f"{name}: no such evaluation set; did you mean eval/{base.eval.name}/{found['name']}?"
        )
    k = found["name"].removeprefix("pass@")
    if k.isdigit() and int(k) not in base.eval.pass_k:
        raise ConfigError(f"{name}: eval.pass_k is {list(base.eval.pass_k)}; should hold {k}")
