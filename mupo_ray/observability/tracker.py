"""Where a run's metrics go: `metrics.jsonl` always, other trackers on request.

The others are imported when asked for and never needed. All check keys against `metrics.py`.
"""

from __future__ import annotations

import importlib
import json
import logging
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from mupo_ray.errors import CheckpointError
from mupo_ray.files import read_jsonl, write_jsonl
from mupo_ray.observability.metrics import check
from mupo_ray.types import Metric

_LOG = logging.getLogger(__name__)


class Tracker(Protocol):
    """Takes the metrics of a step."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record a step's metrics; each step once, in rising order.

        Args:
            step: finished optimiser steps.
            values: declared metric key -> value.
        """
        ...

    def close(self) -> None:
        """Flush and let go; safe to call twice."""
        ...


class JsonlTracker:
    """One line of JSON a step: `{"step": 3, "loss/total": 0.1, ...}`.

    A line is appended by a single write, so a reader never sees half of one; half a line left by a
    crash is cut off on opening. Values that are not finite become null, for JSON has no NaN.
    """

    def __init__(self, path: Path, own: tuple[Metric, ...] = ()) -> None:
        self._path = path
        self._own = own
        path.parent.mkdir(parents=True, exist_ok=True)
        _cut_torn_line(path)
        rows = read_jsonl(path)
        self._last = int(rows[-1]["step"]) if rows else None

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Append a step.

        Raises:
            ValueError: an undeclared key.
            CheckpointError: the file has this step or a later one.
        """
        if self._last is not None and step <= self._last:
            raise CheckpointError(
                f"{self._path} ends at step {self._last}, got step {step} again; "
                f"a resumed run cuts the file back first (truncate_after)"
            )
        row: dict[str, float | None] = {"step": step}
        for key, value in values.items():
            check(key, self._own)
            row[key] = value if math.isfinite(value) else None
        line = json.dumps(row, allow_nan=False) + "\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)
        self._last = step

    def truncate_after(self, step: int) -> None:
        """Drop the steps after `step`, which a resumed run does again."""
        rows = [row for row in read_jsonl(self._path) if row["step"] <= step]
        write_jsonl(self._path, rows)
        self._last = int(rows[-1]["step"]) if rows else None

    def close(self) -> None:
        """Nothing is held between steps."""


class TensorBoardTracker:
    """Scalars for TensorBoard.

    Args:
        folder: where event files go.
        resume_after: last step to keep of an earlier run in this folder; None keeps all.
    """

    def __init__(self, folder: Path, *, resume_after: int | None = None) -> None:
        _need("tensorboard", "tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        purge = None if resume_after is None else resume_after + 1
        self._writer = SummaryWriter(str(folder), purge_step=purge)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write scalars and flush, so that a watcher sees a step when it is done."""
        for key, value in values.items():
            check(key)
            self._writer.add_scalar(key, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


class WandbTracker:
    """Weights & Biases; `WANDB_MODE=offline` keeps it on this machine.

    Args:
        folder: where its files go.
        project: project name.
        run_name: name and id of the run; the same one continues it.
        config: the resolved config.
    """

    def __init__(
        self, folder: Path, *, project: str, run_name: str, config: Mapping[str, Any]
    ) -> None:
        wandb = _need("wandb", "wandb")
        folder.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=project,
            name=run_name,
            id=run_name,
            resume="allow",
            dir=str(folder),
            config=dict(config),
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log one step."""
        for key in values:
            check(key)
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


class MlflowTracker:
    """MLflow, at `MLFLOW_TRACKING_URI` or in a folder.

    Args:
        folder: where its files go if the variable is not set.
        project: experiment name.
        run_name: name of the run.
        config: the resolved config, kept as an artifact.
    """

    def __init__(
        self, folder: Path, *, project: str, run_name: str, config: Mapping[str, Any]
    ) -> None:
        mlflow = _need("mlflow", "mlflow")
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if not uri:
            # mlflow 3 opens a plain folder only when told to; its other store is a database.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            uri = folder.resolve().as_uri()
        self._client = mlflow.MlflowClient(tracking_uri=uri)
        experiment = self._client.get_experiment_by_name(project)
        experiment_id = (
            experiment.experiment_id if experiment else self._client.create_experiment(project)
        )
        self._run_id = self._client.create_run(experiment_id, run_name=run_name).info.run_id
        self._client.log_text(self._run_id, json.dumps(dict(config), default=str), "config.json")
        self._is_open = True

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log one step; `@`, which MLflow forbids in names, becomes `_at_`."""
        for key, value in values.items():
            check(key)
            self._client.log_metric(self._run_id, key.replace("@", "_at_"), value, step=step)

    def close(self) -> None:
        """Mark the run finished."""
        if self._is_open:
            self._client.set_terminated(self._run_id)
            self._is_open = False


class CompositeTracker:
    """Several trackers as one. The first is the record; the others may fail without ending the run.

    Args:
        record: whose errors are the run's errors.
        others: whose errors are logged, once each, after which that tracker is left alone.
    """

    def __init__(self, record: Tracker, others: Sequence[Tracker] = ()) -> None:
        self._record = record
        self._others = list(others)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log to all."""
        self._record.log(step, values)
        for tracker in tuple(self._others):
            try:
                tracker.log(step, values)
            except Exception:
                # A tracking server's outage must not cost the training run; metrics.jsonl has all.
                _LOG.exception("%s failed at step %d and is left out", type(tracker).__name__, step)
                self._others.remove(tracker)

    def close(self) -> None:
        """Close all, the record first."""
        self._record.close()
        for tracker in self._others:
            try:
                tracker.close()
            except Exception:
                _LOG.exception("%s could not be closed", type(tracker).__name__)


def open_trackers(
    run_folder: Path,
    backends: Sequence[str],
    *,
    project: str,
    run_name: str,
    config: Mapping[str, Any],
    resume_after: int | None = None,
    own: tuple[Metric, ...] = (),
) -> CompositeTracker:
    """The trackers of a run: `metrics.jsonl` in its folder, and those asked for.

    Args:
        run_folder: the run's folder.
        backends: any of `tensorboard`, `wandb`, `mlflow`.
        project: project or experiment name there.
        run_name: the run's name.
        config: the resolved config.
        resume_after: step whose checkpoint the run resumes from; later steps are dropped from the
            record. None for a run that starts.
        own: metrics of the run's method.

    Raises:
        ImportError: a backend is not installed; the message names the extra.
        ValueError: a backend that does not exist.
    """
    record = JsonlTracker(run_folder / "metrics.jsonl", own)
    if resume_after is not None:
        record.truncate_after(resume_after)
    others: list[Tracker] = []
    for name in backends:
        folder = run_folder / name
        if name == "tensorboard":
            others.append(TensorBoardTracker(folder, resume_after=resume_after))
        elif name == "wandb":
            others.append(WandbTracker(folder, project=project, run_name=run_name, config=config))
        elif name == "mlflow":
            others.append(MlflowTracker(folder, project=project, run_name=run_name, config=config))
        else:
            raise ValueError(f"no tracker {name!r}; there are tensorboard, wandb and mlflow")
    return CompositeTracker(record, others)


def _need(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ImportError(
            f'{module} is not installed; run: pip install "mupo_ray[{extra}]"'
        ) from error


def _cut_torn_line(path: Path) -> None:
    if not path.exists():
        return
    data = path.read_bytes()
    end = data.rfind(b"\n") + 1
    if end < len(data):
        _LOG.warning("%s ended within a line, which is cut off", path)
        os.truncate(path, end)
