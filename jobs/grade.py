"""Grade any model's answers: a verdict for each row of a JSONL file, without training.

    python jobs/grade.py --input answers.jsonl --output graded.jsonl

Rows hold `response` and `gold`, for multiple choice also `options` ({"A": "...", ...}). The same
rows come out in order with `accuracy`, `format`, `extracted` and `reason`; see docs/rewards.md.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from mupo_ray.errors import MupoError
from mupo_ray.rewards.algebra_pool import AlgebraPool
from mupo_ray.rewards.grade_file import grade_file


def main(argv: list[str] | None = None) -> int:
    """Run the job; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--input", type=Path, required=True, help="JSONL file")
    parser.add_argument("--output", type=Path, required=True, help="written whole or not at all")
    parser.add_argument(
        "--prompt-suffix",
        default="",
        help="what the prompts ended with: `<think>` where the chat template opens it",
    )
    parser.add_argument(
        "--limit-s", type=float, default=5.0, help="seconds for one answer; then reason `timeout`"
    )
    parser.add_argument("--workers", type=int, default=min(os.cpu_count() or 1, 8))
    args = parser.parse_args(argv)
    if args.limit_s <= 0 or args.workers < 1:
        parser.error("--limit-s and --workers should be above 0")
    began = time.monotonic()
    try:
        with AlgebraPool(num_workers=args.workers, limit_s=args.limit_s) as pool:
            counts = grade_file(
                args.input, args.output, algebra_pool=pool, prompt_suffix=args.prompt_suffix
            )
    except MupoError as err:
        print(f"error: {err}", file=sys.stderr)
        return 1
    total = counts.total()
    print(f"{total} rows in {time.monotonic() - began:.1f} s -> {args.output}")
    for reason, count in counts.most_common():
        print(f"{count:>9} {count / total:6.1%}  {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
