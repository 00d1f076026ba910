"""What a run would do, without doing it: configuration, placement, memory (`train.py --explain`).

Needs neither Ray nor torch when the cluster is described.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mupo_ray.errors import PlacementError
from mupo_ray.placement.cluster import GIB
from mupo_ray.placement.model_size import find_size
from mupo_ray.placement.plan import plan
from mupo_ray.placement.table import card_verdicts, host_verdicts, render, table
from mupo_ray.settings.text import to_yaml

if TYPE_CHECKING:
    from mupo_ray.config import Config
    from mupo_ray.placement.cluster import ClusterView
    from mupo_ray.placement.types import PlacementPlan


def explain(config: Config, cluster: ClusterView) -> str:
    """The resolved configuration, the placement plan and the memory each device needs.

    Args:
        config: the run's configuration.
        cluster: `describe_cluster(spec)`, or `live_cluster()` where Ray runs.

    Returns:
        Text of three parts. Memory that does not fit shows as a verdict, a lack of CPUs or GPUs in
        place of the plan.

    Raises:
        ConfigError: the model's `config.json` is broken or of an unknown family.
    """
    parts = ["# Configuration", to_yaml(config), "# Plan"]
    placement = config.placement.model_copy(update={"check_memory": False})
    try:
        placed = plan(config.model_copy(update={"placement": placement}), cluster)
    except PlacementError as err:
        return "\n".join([*parts, str(err)])
    return "\n".join([*parts, render(placed, cluster), "", *_memory(config, placed, cluster)])


def _memory(config: Config, placement: PlacementPlan, cluster: ClusterView) -> list[str]:
    size = find_size(config.model.path)
    lines = ["# Memory (estimate, GiB)"]
    if size is None:
        lines.append(
            f"model.path {config.model.path}: no config.json at hand, so nothing that depends on "
            "the model's size is counted"
        )
    else:
        frozen = ", vision frozen" if config.model.freeze_vision else ""
        lines.append(
            f"{config.model.path}: {size.params:,} parameters ({size.text_params:,} text, "
            f"{size.vision_params:,} vision{frozen})"
        )
    seen: set[str] = set()
    rows: list[tuple[str, ...]] = [("one", "of", "GiB")]
    for bundle in placement.bundles:
        if bundle.role in seen:
            continue
        seen.add(bundle.role)
        for where, uses in (("card", bundle.gpu_memory), ("host", bundle.host_memory)):
            rows += [
                (f"{bundle.role}, {where}", use, f"{size / GIB:.2f}") for use, size in uses.items()
            ]
            if uses:
                total = sum(uses.values()) / GIB
                rows.append((f"{bundle.role}, {where}", "total", f"{total:.2f}"))
    lines += table(rows)
    return [
        *lines,
        "",
        *card_verdicts(placement.bundles, cluster),
        *host_verdicts(placement.bundles, cluster),
    ]
