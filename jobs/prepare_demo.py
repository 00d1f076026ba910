"""Make the laptop task: puzzles as parquet and a warm-started tiny Qwen2.5-VL.

    python jobs/prepare_demo.py --folder runs/demo

writes `data/train.parquet`, `data/eval.parquet`, `data/test.parquet` and `model/` (a Hugging Face
folder), and does nothing where the same settings and the same code made them already.
"""

from __future__ import annotations

import argparse
import logging
import time
from pathlib import Path

import torch

from mupo_ray.data.demo import DemoConfig, prepare_demo
from mupo_ray.data.warm_start import WarmStartConfig


def main() -> None:
    """Parse arguments, prepare, print where."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("runs/demo"))
    parser.add_argument("--seed", type=int, default=0, help="of puzzles, pictures and weights")
    parser.add_argument("--train-rows", type=int, default=2048)
    parser.add_argument("--eval-rows", type=int, default=256)
    parser.add_argument("--test-rows", type=int, default=256)
    args = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("mupo_ray").setLevel(logging.INFO)
    # More threads than free cores make the small matrix products many times slower.
    torch.set_num_threads(1)
    config = DemoConfig(
        seed=args.seed,
        train_rows=args.train_rows,
        eval_rows=args.eval_rows,
        test_rows=args.test_rows,
        warm_start=WarmStartConfig(seed=args.seed),
    )
    start, cpu_start = time.monotonic(), time.process_time()
    demo = prepare_demo(args.folder, config)
    verb = "made" if demo.was_built else "found"
    print(f"{verb} data   {demo.data}")
    print(f"{verb} model  {demo.model}")
    wall_s, cpu_s = time.monotonic() - start, time.process_time() - cpu_start
    print(f"{wall_s:.0f} s, {cpu_s:.0f} CPU-seconds")


if __name__ == "__main__":
    main()
