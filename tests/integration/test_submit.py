"""Training through `ray job submit` to a head of its own, with token authentication."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import yaml
from ray_head import RAY, ray_head

from mupo_ray.config import Config
from mupo_ray.files import read_jsonl

MakeConfig = Callable[..., Config]

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 540
"""Ends what hangs; on an idle machine nothing here takes two minutes."""

pytestmark = pytest.mark.timeout(2 * LIMIT_S)


@pytest.fixture
def config_file(make_config: MakeConfig, tmp_path: Path) -> Path:
    """The settings of a small run, without evaluation, as a YAML file."""
    config = make_config("job", "eval.path=null", f"run.storage_path={tmp_path / 'runs'}")
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(json.loads(config.model_dump_json())))
    return path


@dataclass(frozen=True)
class Head:
    """A cluster of one node with token authentication."""

    address: str
    env: dict[str, str]
    process: subprocess.Popen[bytes] | None
    working_dir: Path

    def ray(self, *arguments: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(RAY), *arguments],
            env=self.env,
            cwd=self.working_dir,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
        )

    def submit(
        self, *arguments: str, options: Sequence[str] = (), timeout_s: float = LIMIT_S
    ) -> subprocess.CompletedProcess[str]:
        command = ("python", "jobs/train.py", *arguments)
        return self.ray(
            "job", "submit", "--address", self.address, "--working-dir", str(self.working_dir),
            *options, "--", *command, timeout_s=timeout_s,
        )  # fmt: skip

    def engines(self) -> list[psutil.Process]:
        """vLLM's processes of this head, orphans too: its token is in their environment."""
        found = []
        for process in psutil.process_iter():
            try:
                if "VLLM" in " ".join(process.cmdline()) and (
                    process.environ().get("RAY_AUTH_TOKEN") == self.env["RAY_AUTH_TOKEN"]
                ):
                    found.append(process)
            except psutil.Error:
                continue
        return found


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    """`ray start --head` on ports of its own; other clusters on this machine stay as they are."""
    working_dir = tmp_path_factory.mktemp("checkout")
    for name in ("mupo_ray", "jobs"):
        shutil.copytree(
            ROOT / name, working_dir / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    env = {k: v for k, v in os.environ.items() if k not in ("RAY_ADDRESS", "PYTHONPATH")}
    env |= {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "PATH": f"{RAY.parent}{os.pathsep}{os.environ['PATH']}",
    }
    log = working_dir.parent / "head.log"

    def is_up(address: str) -> bool:
        return head_at(address).ray("job", "list", "--address", address).returncode == 0

    def head_at(address: str, process: subprocess.Popen[bytes] | None = None) -> Head:
        return Head(address, env, process, working_dir)

    with ray_head(env, is_up, log=log, cwd=ROOT, timeout_s=LIMIT_S) as running:
        yield head_at(running.address, running.process)


def test_a_job_without_the_token_is_turned_away(head: Head) -> None:
    wrong = Head(
        head.address, head.env | {"RAY_AUTH_TOKEN": "0" * 64}, head.process, head.working_dir
    )
    assert wrong.ray("job", "list", "--address", head.address).returncode != 0


def test_a_job_trains_and_its_log_shows_every_step(
    head: Head, config_file: Path, tmp_path: Path
) -> None:
    done = head.submit("--config", str(config_file))
    assert done.returncode == 0, done.stdout
    assert "succeeded" in done.stdout
    steps = [line for line in done.stdout.splitlines() if line.strip().startswith("step")]
    assert len(steps) >= 2, done.stdout
    assert f"done: {tmp_path / 'runs' / 'job'}" in done.stdout
    assert (tmp_path / "runs" / "job" / "report.html").is_file()
    assert [r["step"] for r in read_jsonl(tmp_path / "runs" / "job" / "metrics.jsonl")] == [1, 2]
    wait_for_no_engine(head)


def test_a_failing_job_fails_with_one_message(head: Head, config_file: Path) -> None:
    done = head.submit("--config", str(config_file), "train.num_step=3")
    assert done.returncode != 0
    assert "error: " in done.stdout
    assert "train.num_step" in done.stdout
    assert "Traceback" not in done.stdout.partition("error: ")[0]


def test_a_stopped_job_leaves_no_engine(head: Head, config_file: Path, tmp_path: Path) -> None:
    job = "to-be-stopped"
    head.submit(
        "--config", str(config_file), "train.num_steps=1000",
        options=["--no-wait", "--submission-id", job],
    )  # fmt: skip
    metrics = tmp_path / "runs" / "job" / "metrics.jsonl"
    deadline = time.monotonic() + LIMIT_S
    while not (metrics.exists() and read_jsonl(metrics)):
        assert time.monotonic() < deadline, head.ray(
            "job", "logs", "--address", head.address, job
        ).stdout
        time.sleep(0.5)
    engines = head.engines()
    assert [p.name() for p in engines] == ["VLLM::EngineCore"]
    head.ray("job", "stop", "--address", head.address, job)
    wait_for_no_engine(head)


def wait_for_no_engine(head: Head) -> None:
    deadline = time.monotonic() + 60
    while left := head.engines():
        assert time.monotonic() < deadline, f"still there after 60 s: {left}"
        time.sleep(0.5)
