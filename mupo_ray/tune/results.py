"""What a sweep leaves beside its runs: `sweep.html`, and `best.yaml` to train again."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from mupo_ray.files import read_jsonl
from mupo_ray.report.run_page import write_report
from mupo_ray.settings.load import load_config, load_resolved
from mupo_ray.settings.text import to_yaml
from mupo_ray.tune.report import write_sweep_report
from mupo_ray.tune.trials import best_trials, shown

if TYPE_CHECKING:
    from pathlib import Path

    from mupo_ray.tune.study import Sweep

BEST_FILE = "best.yaml"


def write_results(sweep: Sweep, number: int | None = None) -> None:
    """Write the sweep's page and best configuration anew.

    Args:
        sweep: as it stands.
        number: of a trial that has just ended, whose run gets its report.
    """
    if number is not None:
        run_dir = sweep.run_dir(sweep.trials[number])
        if read_jsonl(run_dir / "metrics.jsonl"):
            title = f"{sweep.config.name}, trial {number}"
            write_report({f"trial {number}": run_dir}, run_dir / "report.html", title)
    write_sweep_report(sweep)
    write_best(sweep)


def write_best(sweep: Sweep) -> Path | None:
    """The configuration of the best trial, as a run of its own; None before there is one.

    With several objectives it is that of the front which is best in the first of them.
    """
    best = best_trials(sweep)
    if not best:
        return None
    trial = best[0]
    config = load_resolved(sweep.run_dir(trial))
    place = ["run.name=best", f"run.storage_path={json.dumps(str(sweep.folder))}"]
    values = ", ".join(
        f"{o.text} = {v:.4f}" for o, v in zip(sweep.objectives, trial.values, strict=True)
    )
    head = [f"# Trial {trial.number} of {sweep.config.name}: {values}"]
    head += [f"#   {path} = {shown(value)}" for path, value in trial.params.items()]
    if len(best) > 1:
        others = ", ".join(str(t.number) for t in best[1:])
        head.append(f"# The front has others too: trials/<number>/run.json of {others}.")
    path = sweep.folder / BEST_FILE
    draft = path.with_name(f".{BEST_FILE}.{os.getpid()}")
    draft.write_text("\n".join([*head, to_yaml(load_config([], place, base=config))]))
    draft.replace(path)
    return path
