"""Compare two evaluations problem by problem: tables here, everything in compare.json.

python jobs/compare.py RUN_A RUN_B [--out compare.json]

A RUN is the folder of an evaluation, with `results.json` and `<set>/samples.parquet`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from mupo_ray.errors import MupoError


def main(argv: list[str] | None = None) -> int:
    """Run the job; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run_a", type=Path, metavar="RUN_A")
    parser.add_argument("run_b", type=Path, metavar="RUN_B")
    parser.add_argument("--out", type=Path, default=Path("compare.json"))
    parser.add_argument("--seed", type=int, default=0, help="of the bootstrap")
    parser.add_argument(
        "--problems", type=int, default=3, help="shown of those that one run alone solves"
    )
    args = parser.parse_args(argv)
    try:
        print(_compare(args.run_a, args.run_b, args.out, args.seed, args.problems))
    except MupoError as err:
        print(f"error: {err}", file=sys.stderr)
        return 1
    return 0


def _compare(run_a: Path, run_b: Path, out: Path, seed: int, num_problems: int) -> str:
    from mupo_ray.evaluation.compare import compare_folders, save_comparison
    from mupo_ray.evaluation.tables import comparison_text

    comparison = compare_folders(run_a, run_b, seed=seed)
    save_comparison(out, comparison)
    return f"{comparison_text(comparison, num_problems=num_problems)}\n\nall of it  {out}"


if __name__ == "__main__":
    sys.exit(main())
