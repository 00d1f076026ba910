"""Compare runs: a table here and one self-contained page.

python jobs/report.py RUN_DIR [RUN_DIR ...] --out report.html
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from mupo_ray.errors import ConfigError, MupoError


def main(argv: list[str] | None = None) -> int:
    """Run the job; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run_dirs", nargs="+", type=Path, metavar="RUN_DIR")
    parser.add_argument("--out", type=Path, default=Path("report.html"))
    parser.add_argument("--title", default="Training report")
    args = parser.parse_args(argv)
    try:
        from mupo_ray.evaluation.report import comparison_table, write_report

        runs = _named(args.run_dirs)
        path = write_report(runs, args.out, args.title)
        print(f"{comparison_table(runs)}\n\nreport  {path}")
    except MupoError as err:
        print(f"error: {err}", file=sys.stderr)
        return 1
    return 0


def _named(folders: list[Path]) -> dict[str, Path]:
    """Runs by the shortest ends of their paths that tell them apart."""
    whole = [folder.resolve() for folder in folders]
    if len(set(whole)) < len(whole):
        raise ConfigError("a run is given twice; should be given once")
    depth = 1
    while len({path.parts[-depth:] for path in whole}) < len(whole):
        depth += 1
    return {
        "/".join(path.parts[-depth:]): folder for path, folder in zip(whole, folders, strict=True)
    }


if __name__ == "__main__":
    sys.exit(main())
