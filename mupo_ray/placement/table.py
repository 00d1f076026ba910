"""A placement plan for people: tables, and whether the estimated memory fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mupo_ray.placement.cluster import GIB, ClusterView, Node
from mupo_ray.placement.types import Bundle, PlacementPlan, Role

if TYPE_CHECKING:
    from collections.abc import Sequence


def card_verdicts(bundles: Sequence[Bundle], cluster: ClusterView) -> list[str]:
    """For each kind of load on a GPU: `card of trainer 0: 70.1 GiB of 80.0 GiB, fits`.

    Cards with the same load on the same kind of node are one line.
    """
    trainers = {b.index: b for b in bundles if b.role is Role.TRAINER}
    loads: dict[str, tuple[int, Node]] = {}
    for bundle in bundles:
        if not bundle.gpu_memory or bundle.node is None:
            continue
        own = sum(bundle.gpu_memory.values())
        node = cluster.nodes[bundle.node]
        if bundle.cards_of:
            for rank in bundle.cards_of:
                key = trainers[rank].name
                loads[key] = (loads.get(key, (0, node))[0] + own, node)
        else:
            loads[bundle.name] = (loads.get(bundle.name, (0, node))[0] + own, node)
    grouped: dict[str, list[str]] = {}
    for name, (used, node) in loads.items():
        grouped.setdefault(_verdict(used, node.card_bytes), []).append(name)
    return [f"card of {ranges(names)}: {verdict}" for verdict, names in grouped.items()]


def host_verdicts(bundles: Sequence[Bundle], cluster: ClusterView) -> list[str]:
    """For each node: what the plan's processes hold in its memory, and whether that fits."""
    used: dict[int, int] = {}
    for bundle in bundles:
        if bundle.node is not None:
            used[bundle.node] = used.get(bundle.node, 0) + sum(bundle.host_memory.values())
    return [
        f"{cluster.nodes[at].name}: {_verdict(total, cluster.nodes[at].memory_bytes)}"
        for at, total in sorted(used.items())
    ]


def render(placement: PlacementPlan, cluster: ClusterView) -> str:
    """The plan as a table, beside what each node has free."""
    transports = sorted({b.transport for b in placement.bundles if b.transport})
    rows: list[tuple[str, ...]] = [("bundles", "CPU", "GPU", "GiB host", "GiB card", "node")]
    groups: dict[tuple[str, ...], list[str]] = {}
    for bundle in placement.bundles:
        place = "-" if bundle.node is None else cluster.nodes[bundle.node].name
        gpu = f"{bundle.gpus:g}"
        if bundle.cards_of:
            gpu = "trainer's" if len(bundle.cards_of) == 1 else f"{len(bundle.cards_of)} trainers'"
        cells = (
            f"{bundle.cpus:g}",
            gpu,
            f"{sum(bundle.host_memory.values()) / GIB:.1f}",
            f"{sum(bundle.gpu_memory.values()) / GIB:.1f}" if bundle.gpu_memory else "-",
            place,
        )
        groups.setdefault((bundle.role, *cells), []).append(bundle.name)
    rows += [(ranges(names), *cells[1:]) for cells, names in groups.items()]
    lines = [
        f"Placement: {placement.mode} on {placement.device}, weights by {' and '.join(transports)}",
        *table(rows),
    ]
    if any(b.cards_of for b in placement.bundles):
        lines.append(
            "What sits on a trainer's card reserves no GPU: it starts after the trainers, bound to "
            "their node, with CUDA_VISIBLE_DEVICES set to their cards."
        )
    nodes = [("node", "CPU plan/free", "GPU plan/free", "GiB host plan/free")]
    for at, node in enumerate(cluster.nodes):
        mine = [b for b in placement.bundles if b.node == at]
        host = sum(sum(b.host_memory.values()) for b in mine) / GIB
        has = "?" if node.memory_bytes is None else f"{node.memory_bytes / GIB:.1f}"
        nodes.append(
            (
                node.name,
                f"{sum(b.cpus for b in mine):g}/{node.cpus:g}",
                f"{sum(b.gpus for b in mine):g}/{node.gpus:g}",
                f"{host:.1f}/{has}",
            )
        )
    return "\n".join([*lines, "", *table(nodes)])


def _verdict(used: int, has: int | None) -> str:
    if has is None:
        return f"{used / GIB:.1f} GiB, of an unknown amount"
    text = f"{used / GIB:.1f} GiB of {has / GIB:.1f} GiB, "
    return text + ("fits" if used <= has else f"exceeds by {(used - has) / GIB:.1f} GiB")


def ranges(names: Sequence[str]) -> str:
    """`trainer 0`, `trainer 1`, `trainer 2` -> `trainer 0-2`."""
    by_role: dict[str, list[int]] = {}
    for name in names:
        role, _, index = name.rpartition(" ")
        by_role.setdefault(role, []).append(int(index))
    texts = []
    for role, indices in by_role.items():
        runs: list[list[int]] = []
        for i in sorted(indices):
            if runs and i == runs[-1][-1] + 1:
                runs[-1].append(i)
            else:
                runs.append([i])
        spans = ",".join(f"{r[0]}-{r[-1]}" if len(r) > 1 else f"{r[0]}" for r in runs)
        texts.append(f"{role} {spans}")
    return ", ".join(texts)


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligned columns, the first to the left and the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  "
        + "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
