from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from mupo_ray.errors import CheckpointError
from mupo_ray.files import read_jsonl
from mupo_ray.observability.tracker import CompositeTracker, JsonlTracker, open_trackers

_KEY = "loss/total"


def _open(folder: Path, *backends: str, resume_after: int | None = None) -> CompositeTracker:
    return open_trackers(
        folder,
        backends,
        project="tests",
        run_name="one",
        config={"seed": 1},
        resume_after=resume_after,
    )


def test_a_line_a_step_and_no_nan(tmp_path: Path) -> None:
    tracker = JsonlTracker(tmp_path / "run" / "metrics.jsonl")
    tracker.log(1, {_KEY: 0.5, "loss/kl": float("nan")})
    tracker.log(2, {_KEY: float("-inf")})
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert lines == [
        '{"step": 1, "loss/total": 0.5, "loss/kl": null}',
        '{"step": 2, "loss/total": null}',
    ]


def test_an_undeclared_key_leaves_no_line(tmp_path: Path) -> None:
    tracker = JsonlTracker(tmp_path / "metrics.jsonl")
    with pytest.raises(ValueError, match="not declared"):
        tracker.log(1, {_KEY: 0.5, "loss/totl": 1.0})
    assert read_jsonl(tmp_path / "metrics.jsonl") == []


def test_a_step_cannot_come_twice(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    JsonlTracker(path).log(3, {_KEY: 0.5})
    again = JsonlTracker(path)
    with pytest.raises(CheckpointError, match="ends at step 3, got step 3"):
        again.log(3, {_KEY: 0.5})
    again.log(4, {_KEY: 0.5})


def test_resume_does_the_steps_after_the_checkpoint_once(tmp_path: Path) -> None:
    tracker = _open(tmp_path)
    for step in (1, 2, 3, 4):
        tracker.log(step, {_KEY: step / 10})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "loss/to')  # killed while writing
    resumed = _open(tmp_path, resume_after=2)
    for step in (3, 4, 5):
        resumed.log(step, {_KEY: step * 10.0})
    rows = read_jsonl(tmp_path / "metrics.jsonl")
    assert [(row["step"], row[_KEY]) for row in rows] == [
        (1, 0.1),
        (2, 0.2),
        (3, 30.0),
        (4, 40.0),
        (5, 50.0),
    ]


def test_half_a_line_is_cut_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"st')
    with caplog.at_level(logging.WARNING):
        JsonlTracker(path).log(2, {_KEY: 1.0})
    assert "cut off" in caplog.text
    assert [row["step"] for row in read_jsonl(path)] == [1, 2]


def test_tensorboard_reads_back(tmp_path: Path) -> None:
    tracker = _open(tmp_path, "tensorboard")
    tracker.log(1, {_KEY: 0.25, "eval/demo/pass@4": 0.5})
    tracker.log(2, {_KEY: 0.125})
    tracker.close()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars(_KEY)] == [(1, 0.25), (2, 0.125)]
    assert [(e.step, e.value) for e in events.Scalars("eval/demo/pass@4")] == [(1, 0.5)]


def test_a_missing_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ImportError, match=r'pip install "mupo_ray\[wandb\]"'):
        _open(tmp_path, "wandb")


def test_an_unknown_backend_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no tracker 'paper'"):
        _open(tmp_path, "paper")


def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="wandb is an extra")
    for name, value in {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}.items():
        monkeypatch.setenv(name, value)
    tracker = _open(tmp_path, "wandb")
    tracker.log(1, {_KEY: 0.25})
    tracker.close()
    # A process of wandb's own writes the file, on a busy machine after the run has finished.
    deadline = time.monotonic() + 60
    while True:
        (file,) = (tmp_path / "wandb").rglob("*.wandb")
        if b"loss/total" in file.read_bytes():
            break
        assert time.monotonic() < deadline, f"{file} holds {file.stat().st_size} bytes after 60 s"
        time.sleep(0.2)


def test_mlflow_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="mlflow is an extra", exc_type=ImportError)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    tracker = _open(tmp_path, "mlflow")
    tracker.log(1, {"eval/demo/pass@4": 0.25})
    tracker.log(2, {"eval/demo/pass@4": 0.5})
    tracker.close()
    (file,) = (tmp_path / "mlflow").rglob("pass_at_4")
    assert [line.split()[1:] for line in file.read_text().splitlines()] == [
        ["0.25", "1"],
        ["0.5", "2"],
    ]


class _Failing:
    def __init__(self) -> None:
        self.calls = 0

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.calls += 1
        raise ConnectionError("server is away")

    def close(self) -> None:
        raise ConnectionError("server is away")


def test_a_failing_tracker_is_left_out_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    record, failing = JsonlTracker(tmp_path / "metrics.jsonl"), _Failing()
    tracker = CompositeTracker(record, [failing])
    tracker.log(1, {_KEY: 1.0})
    tracker.log(2, {_KEY: 2.0})
    tracker.close()
    assert failing.calls == 1
    assert "_Failing failed at step 1" in caplog.text
    assert [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").open()] == [1, 2]
