"""Search hyper-parameters: `python jobs/sweep.py --config ... --sweep configs/sweep.yaml`.

This is one worker. Started several times, also on other hosts or by `ray job submit`, workers share
the trials of one study; started again after a break, they go on with it.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mupo_ray.config import parse_cli
from mupo_ray.errors import MupoError
from mupo_ray.observability.console import set_up_logging

if TYPE_CHECKING:
    from types import FrameType

    from mupo_ray.tune.study import Sweep


_LOG_WIDTH = 160


def main(argv: list[str] | None = None) -> int:
    """Run the job; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweep", type=Path, required=True, metavar="FILE", help="what to search")
    parser.add_argument("--name", help="in place of the file's: another name is another study")
    parser.add_argument("--trials", type=int, help="in place of the file's")
    parser.add_argument("--minutes", type=float, help="in place of the file's")
    parser.add_argument("--storage", metavar="ADDRESS", help="in place of the file's")
    try:
        base, args = parse_cli(argv, parser)
        from mupo_ray.tune.spec import read_sweep
        from mupo_ray.tune.study import open_sweep

        flags = {name: getattr(args, name) for name in ("name", "trials", "minutes", "storage")}
        changes = {name: value for name, value in flags.items() if value is not None}
        sweep = open_sweep(read_sweep(args.sweep, changes), base)
        set_up_logging()
        _work(sweep)
    except MupoError as err:
        print(f"error: {err}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; start again to go on", file=sys.stderr)
        return 130
    return 0


def _work(sweep: Sweep) -> None:
    from rich.console import Console

    from mupo_ray.train.launch import connect
    from mupo_ray.tune.report import BEST_FILE, PAGE_FILE, write_results
    from mupo_ray.tune.trainer import SessionTrainer
    from mupo_ray.tune.trials import SweepTable, make_table
    from mupo_ray.tune.worker import work

    # `ray job stop` and batch systems end a job so.
    signal.signal(signal.SIGTERM, _interrupt)
    connect(sweep.base)
    trainer = SessionTrainer()
    try:
        with SweepTable(sys.stdout, write_results) as table:
            work(sweep, trainer, table)
    finally:
        trainer.let_go()
        write_results(sweep)
    print()
    # A log file or a job's output has no width of its own.
    width = None if sys.stdout.isatty() else _LOG_WIDTH
    Console(file=sys.stdout, width=width).print(make_table(sweep))
    print(f"\nreport  {sweep.folder / PAGE_FILE}\nbest    {sweep.folder / BEST_FILE}")


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
