"""Training as people start it: `python jobs/train.py`, with what is wrong told in one message."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from mupo_ray.config import Config

MakeConfig = Callable[..., Config]

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def config_file(make_config: MakeConfig, tmp_path: Path) -> Path:
    """The settings of a small run, without evaluation, as a YAML file."""
    config = make_config("job", "eval.path=null", f"run.storage_path={tmp_path / 'runs'}")
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(json.loads(config.model_dump_json())))
    return path


# -- errors that end a job before anything is started --------------------------------------------


def train(
    arguments: Sequence[str], cwd: Path, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "jobs" / "train.py"), *arguments],
        cwd=cwd,
        # Whatever else is running on this machine, or was.
        env=os.environ | {"PYTHONPATH": str(ROOT), "RAY_ADDRESS": "local"} | (env or {}),
        capture_output=True,
        text=True,
        timeout=300,
    )


def model_without_images(folder: Path, model: Path) -> Path:
    shutil.copytree(model, folder)
    template = "{% for m in messages %}{{ m['role'] }}\n{% endfor %}"
    (folder / "chat_template.jinja").write_text(template)
    return folder


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rollout.num_generation=8", r"rollout\.num_generation\b.*num_generations"),
        ("method.num_groups=5", r"method\.num_groups \* method\.min_group_size = 15 exceeds .* 6"),
        ("model.path={tmp}/none", r"none"),
        ("data.train={tmp}/none.parquet", r"none\.parquet"),
        ("data.train={tmp}/columns.parquet", r"problem"),
        ("model.path={tmp}/textual", r"chat template.*image"),
    ],
    ids=["unknown-key", "too-many-groups", "no-model", "no-data", "no-column", "no-image-template"],
)
def test_a_wrong_input_ends_in_one_message(
    config_file: Path,
    tiny_model: Path,
    puzzles: dict[str, Path],
    tmp_path: Path,
    ray_local: None,
    capsys: pytest.CaptureFixture[str],
    override: str,
    message: str,
) -> None:
    table = pq.read_table(puzzles["train"]).drop_columns(["problem"])
    pq.write_table(table, tmp_path / "columns.parquet")
    model_without_images(tmp_path / "textual", tiny_model)
    code = load_job().main(["--config", str(config_file), override.format(tmp=tmp_path)])
    assert code == 1
    assert_one_message(capsys.readouterr().err, message)
    assert not (tmp_path / "runs").exists()


def load_job() -> Any:
    """`jobs/train.py` as a module: a process a case would spend its time importing."""
    spec = importlib.util.spec_from_file_location("train_job", ROOT / "jobs" / "train.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_process_that_fails_exits_with_1(config_file: Path, tmp_path: Path) -> None:
    done = train(["--config", str(config_file), f"model.path={tmp_path}/none"], tmp_path)
    assert done.returncode == 1
    assert_one_message(done.stderr, "none")


def assert_one_message(output: str, message: str) -> None:
    """An `error:` line that says it, and no traceback."""
    found = re.search(rf"error: .*{message}", output, flags=re.DOTALL)
    assert found, output
    assert "Traceback" not in output


def test_a_plan_without_room_says_what_is_missing_d04(config_file: Path, tmp_path: Path) -> None:
    done = train(
        [
            "--config",
            str(config_file),
            "train.num_workers=2",
            "train.cpus_per_worker=500",
            "placement.timeout_s=3",
        ],
        tmp_path,
    )
    assert done.returncode == 1
    assert_one_message(
        done.stderr, r"gave up after 3 s.*trainers? 0.*required 500 CPU, available \d+ CPU"
    )
    assert not (tmp_path / "runs" / "job" / "metrics.jsonl").exists()


def test_a_cluster_that_does_not_answer_is_named_at_once(config_file: Path, tmp_path: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        done = train(["--config", str(config_file)], tmp_path, {"RAY_ADDRESS": address})
    assert done.returncode == 1
    assert_one_message(done.stderr, r"no Ray cluster answers at .*, which RAY_ADDRESS names")
