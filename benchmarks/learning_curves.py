"""GRPO and MUPO on the laptop task at several seeds: the figures of docs/results.md.

    python benchmarks/learning_curves.py --seeds 0 1 2 --folder runs/curves

All runs share base model, data, steps and services; only the seed of data order and sampling
differs between seeds, and only the method between runs of one seed. Finished runs are kept, so an
interrupted study goes on where it stopped.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path

import numpy as np

from mupo_ray.config import Config
from mupo_ray.config_io import load_config
from mupo_ray.data.demo import prepare_demo
from mupo_ray.data.puzzle_text import read_response
from mupo_ray.evaluation.samples import load_problems
from mupo_ray.observability.follow import following, set_up_logging
from mupo_ray.observability.tracker import read_jsonl
from mupo_ray.rollout.services import services_of
from mupo_ray.sync.placement import wait_for_plan
from mupo_ray.train.launch import connect, run_training

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
# Name -> (config files over tiny_cpu.yaml, overrides).
METHODS: dict[str, tuple[list[str], list[str]]] = {
    "grpo": (["grpo.yaml"], []),
    "mupo_k3": ([], []),
    "mupo_k2": ([], ["method.num_groups=2", "method.min_group_size=4"]),
    "mupo_k3_paper": ([], ["method.weighting=paper"]),
}
COLUMNS = ("acc@1", "acc@1_sampled", "acc@4", "pass@4", "diversity", "effective_strategies")
_SAMPLES = 8


def config_of(method: str, seed: int, folder: Path, base: Path) -> Config:
    """The run of one method at one seed."""
    files, overrides = METHODS[method]
    return load_config(
        [CONFIGS / "tiny_cpu.yaml", *(CONFIGS / name for name in files)],
        [
            f"run.name={method}_s{seed}",
            f"run.storage_path={folder}",
            f"run.seed={seed}",
            f"model.path={base / 'model'}",
            f"data.train={base / 'data' / 'train.parquet'}",
            f"eval.path={base / 'data' / 'eval.parquet'}",
            *overrides,
        ],
    )


def strategies(path: Path) -> tuple[float, float]:
    """Strategies recognised in the first eight samples of a prompt, and the unrecognised share."""
    counts, unknown, total = [], 0, 0
    for problem in load_problems(path):
        chains = [read_response(response.text) for response in problem.samples[:_SAMPLES]]
        names = [chain.strategy for chain in chains if chain is not None]
        unknown += len(chains) - len(names)
        total += len(chains)
        counts.append(len(set(names)))
    return float(np.mean(counts)), unknown / total


def table(folder: Path, seeds: list[int], methods: list[str]) -> str:
    """Mean over seeds and the half range, by method and step."""
    lines = [f"| method | step | {' | '.join(COLUMNS)} | strategies in 8 | unrecognised |"]
    lines.append("|" + "---|" * (len(COLUMNS) + 4))
    for method in methods:
        rows: dict[int, list[list[float]]] = defaultdict(list)
        for run in (folder / f"{method}_s{seed}" for seed in seeds):
            for row in read_jsonl(run / "metrics.jsonl"):
                if "eval/heldout/acc@1" not in row:
                    continue
                eval_file = run / "eval" / "heldout" / f"step_{row['step']:06d}.parquet"
                rows[row["step"]].append(
                    [row[f"eval/heldout/{c}"] for c in COLUMNS] + list(strategies(eval_file))
                )
        for step, values in sorted(rows.items()):
            matrix = np.array(values)
            mean, half = matrix.mean(0), np.ptp(matrix, axis=0) / 2
            cells = [f"{m:.3f} +-{h:.3f}" for m, h in zip(mean, half, strict=True)]
            lines.append(f"| {method} | {step} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--folder", type=Path, default=Path("runs/curves"))
    parser.add_argument("--base", type=Path, default=Path("runs/demo"))
    parser.add_argument("--table-only", action="store_true", help="of the runs that are there")
    args = parser.parse_args()
    if not args.table_only:
        prepare_demo(args.base)
        set_up_logging()
        configs = [
            config_of(method, seed, args.folder, args.base)
            for seed in args.seeds
            for method in args.methods
        ]
        connect(configs[0])
        with services_of(configs[0], wait_for_plan(configs[0])) as services:
            for config in configs:
                rows = read_jsonl(config.run_dir / "metrics.jsonl")
                if rows and rows[-1]["step"] == config.train.num_steps:
                    continue
                print(f"\n{config.run.name}", flush=True)
                with following(config):
                    run_training(config, services=services)
    print(table(args.folder, args.seeds, args.methods))


if __name__ == "__main__":
    main()
