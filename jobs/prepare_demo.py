"""Make the laptop task: puzzles as parquet and a warm-started tiny Qwen2.5-VL.

    python jobs/prepare_demo.py              # into runs/demo
    python jobs/prepare_demo.py --hinted     # into runs/demo_hinted

writes `data/train.parquet`, `data/eval.parquet`, `data/test.parquet` and `model/` (a Hugging Face
folder), and does nothing where the same settings and the same code made them already. In hinted
puzzles the picture tells, not quite reliably, which strategies are valid.
"""

from __future__ import annotations

import argparse
import logging
import time
from pathlib import Path

import torch

from mupo_ray.demo.demo import DemoConfig, prepare_demo
from mupo_ray.demo.warm_start import WarmStartConfig


def main() -> None:
    """Parse arguments, prepare, print where."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="runs/demo or runs/demo_hinted where absent")
    parser.add_argument("--hinted", action="store_true", help="show hints in the hidden cells")
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
        hinted=args.hinted,
        warm_start=WarmStartConfig(seed=args.seed),
    )
    start, cpu_start = time.monotonic(), time.process_time()
    folder = args.folder or Path("runs/demo_hinted" if args.hinted else "runs/demo")
    demo = prepare_demo(folder, config)
    verb = "made" if demo.was_built else "found"
    print(f"{verb} data   {demo.data}")
    print(f"{verb} model  {demo.model}")
    wall_s, cpu_s = time.monotonic() - start, time.process_time() - cpu_start
    print(f"{wall_s:.0f} s, {cpu_s:.0f} CPU-seconds")


if __name__ == "__main__":
    main()
