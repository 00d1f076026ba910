"""Write a trained model as a plain Hugging Face folder with a model card.

python jobs/export.py RUN_DIR_OR_CHECKPOINT OUT_DIR [--step N]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from mupo_ray.errors import MupoError


def main(argv: list[str] | None = None) -> int:
    """Run the job; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path, metavar="RUN_DIR_OR_CHECKPOINT")
    parser.add_argument("out", type=Path, metavar="OUT_DIR", help="new or empty folder")
    parser.add_argument("--step", type=int, help="checkpoint after this many steps; else newest")
    args = parser.parse_args(argv)
    try:
        from mupo_ray.runs.export import export_checkpoint

        print(f"exported to {export_checkpoint(args.source, args.out, step=args.step)}")
    except MupoError as err:
        print(f"error: {err}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
