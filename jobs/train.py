"""Train a model: `python jobs/train.py --config configs/tiny_cpu.yaml [section.field=value ...]`.

The same arguments work behind `ray job submit --working-dir . -- python jobs/train.py ...`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from mupo_ray.config import parse_cli
from mupo_ray.errors import MupoError
from mupo_ray.observability.console import following, set_up_logging
from mupo_ray.placement.cluster import describe_cluster
from mupo_ray.placement.explain import explain


def main(argv: list[str] | None = None) -> int:
    """Run the job; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--explain",
        action="store_true",
        help="print config, placement and memory estimate for the cluster, then exit",
    )
    parser.add_argument(
        "--assume-cluster",
        metavar="SPEC",
        help="with --explain: a described cluster, such as 1x8xH100-80G",
    )
    try:
        config, args = parse_cli(argv, parser)
        if args.assume_cluster and not args.explain:
            parser.error("--assume-cluster goes with --explain")
        if args.assume_cluster:
            print(explain(config, describe_cluster(args.assume_cluster)))
            return 0
        from mupo_ray.train.launch import connect, run_training

        set_up_logging()
        connect(config)
        if args.explain:
            from mupo_ray.placement.plan import live_cluster

            print(explain(config, live_cluster()))
            return 0
        with following(config):
            run_dir = run_training(config)
        _summarise(config.run.name, run_dir)
    except MupoError as err:
        print(f"error: {err}", file=sys.stderr)
        return 1
    return 0


def _summarise(name: str, run_dir: Path) -> None:
    """The run's figures here, and its page of plots in its folder."""
    from mupo_ray.report.run_page import write_report
    from mupo_ray.runs.folder import early_stop
    from mupo_ray.runs.summary import comparison_table

    page = write_report({name: run_dir}, run_dir / "report.html", title=name)
    print(f"\n{comparison_table({name: run_dir})}\n\nreport  {page}")
    print(early_stop(run_dir) or f"done: {run_dir}")


if __name__ == "__main__":
    sys.exit(main())
