"""Compare runs and evaluations: a table here and one self-contained page.

python jobs/report.py RUN_DIR [RUN_DIR ...] --out report.html

A RUN_DIR is the folder of a training run or of an evaluation; a page may hold both.
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
    parser.add_argument("--title", help="of the page; says what it reports on if not given")
    args = parser.parse_args(argv)
    try:
        print(_report(_named(args.run_dirs), args.out, args.title))
    except MupoError as err:
        print(f"error: {err}", file=sys.stderr)
        return 1
    return 0


def _report(folders: dict[str, Path], out: Path, title: str | None) -> str:
    """Write the page; returns tables and the page's path for the terminal."""
    from mupo_ray.evaluation.results import RESULTS_FILE, load_results
    from mupo_ray.evaluation.tables import models_table
    from mupo_ray.report.eval_page import is_evaluation, write_eval_report
    from mupo_ray.report.run_page import write_report
    from mupo_ray.runs.summary import comparison_table

    evaluations = {name: folder for name, folder in folders.items() if is_evaluation(folder)}
    runs = {name: folder for name, folder in folders.items() if name not in evaluations}
    if runs:
        path = write_report(runs, out, title or "Training report", evaluations=evaluations)
    else:
        path = write_eval_report(evaluations, out, title or "Evaluation report")
    said = [comparison_table(runs)] if runs else []
    if evaluations:
        said.append(
            models_table({n: load_results(f / RESULTS_FILE) for n, f in evaluations.items()})
        )
    return "\n\n".join([*said, f"report  {path}"])


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
