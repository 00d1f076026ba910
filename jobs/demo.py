"""The demo: make a small Qwen2.5-VL and picture puzzles, train it by GRPO and by MUPO, compare.

Both runs start from the same base model with the same seed, data and number of steps, through the
same real stack that a cluster uses. Writes `runs/demo/summary.json` and `runs/demo/report.html`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from mupo_ray.config import load_config
from mupo_ray.demo.memory import MemoryWatch
from mupo_ray.errors import MupoError
from mupo_ray.files import write_json

if TYPE_CHECKING:
    from collections.abc import Iterator

_JOBS = Path(__file__).resolve().parent
_CONFIGS = _JOBS.parent / "configs"


def main(argv: list[str] | None = None) -> int:
    """Run the job; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("runs/demo"))
    parser.add_argument("--seed", type=int, default=0, help="of the two runs")
    parser.add_argument("--steps", type=int, default=60, help="training steps of each run")
    args = parser.parse_args(argv)
    try:
        _demo(args.folder, args.seed, args.steps)
    except MupoError as err:
        print(f"error: {err}", file=sys.stderr)
        return 1
    return 0


def _demo(folder: Path, seed: int, steps: int) -> None:
    began = time.monotonic()
    watch = MemoryWatch()
    watch.start()
    overrides = [
        f"run.storage_path={folder}",
        f"run.seed={seed}",
        f"train.num_steps={steps}",
        f"model.path={folder / 'model'}",
        f"data.train={folder / 'data' / 'train.parquet'}",
        f"eval.path={folder / 'data' / 'eval.parquet'}",
        "eval.every_steps=20",
    ]
    tiny = _CONFIGS / "tiny_cpu.yaml"
    runs = {
        "grpo": load_config([tiny, _CONFIGS / "grpo.yaml"], [*overrides, "run.name=grpo"]),
        "mupo": load_config([tiny], [*overrides, "run.name=mupo"]),
    }

    with _preparing(folder):
        # Meanwhile, on another core.
        from mupo_ray.observability.console import following, set_up_logging
        from mupo_ray.report.run_page import write_report
        from mupo_ray.runs.summary import comparison_table
        from mupo_ray.train.launch import connect, run_training
        from mupo_ray.train.session import open_session

        set_up_logging()
        connect(runs["mupo"])
    with open_session(runs["mupo"]) as session:
        for name, config in runs.items():
            # The demo shows a run from its start; what an earlier one left would be resumed.
            shutil.rmtree(config.run_dir, ignore_errors=True)
            print(f"\ntraining {name}, {steps} steps", flush=True)
            with following(config):
                run_training(config, session=session)
    folders = {name: config.run_dir for name, config in runs.items()}
    write_report(folders, folder / "report.html", title="GRPO and MUPO on picture puzzles")
    wall_s, peak = round(time.monotonic() - began, 1), watch.stop()
    summary = {
        "wall_s": wall_s,
        "peak_rss_bytes": peak.rss_bytes,
        "peak_pss_bytes": peak.pss_bytes,
        "steps": steps,
        **_figures(folders),
    }
    write_json(folder / "summary.json", summary)
    print(f"\n{comparison_table(folders)}")
    print(f"summary  {folder / 'summary.json'}\nreport   {folder / 'report.html'}")
    print(
        f"{wall_s:.0f} s, peak memory {peak.pss_bytes / 2**30:.1f} GiB "
        f"({peak.rss_bytes / 2**30:.1f} GiB where shared pages count once a process)"
    )


@contextlib.contextmanager
def _preparing(folder: Path) -> Iterator[None]:
    """Puzzles and base model are made meanwhile, by a process whose memory is then free again."""
    print("making puzzles and base model (about 80 s of one CPU, then kept)", flush=True)
    process = subprocess.Popen(
        [sys.executable, str(_JOBS / "prepare_demo.py"), "--folder", str(folder)],
        env=os.environ | {"DS_ACCELERATOR": "cpu", "TQDM_DISABLE": "1"},
    )
    try:
        yield
        code = process.wait()
    finally:
        process.kill()
    if code != 0:
        raise MupoError(f"making puzzles and base model failed with exit code {code}, see above")


def _figures(folders: dict[str, Path]) -> dict[str, dict[str, object]]:
    """The summary's figures: the base model's, then each run's at its end."""
    from mupo_ray.runs.summary import summarise_run

    summaries = {name: summarise_run(path) for name, path in folders.items()}
    base = next(iter(summaries.values())).base
    figures = {"base": base.as_dict()}
    for name, run in summaries.items():
        figures[name] = {**run.final.as_dict(), "step_s": run.step_s}
    return figures


if __name__ == "__main__":
    sys.exit(main())
