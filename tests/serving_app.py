"""A served model for tests: a cluster of its own, `serve deploy`, and a way to swap weights."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml

ROOT = Path(__file__).resolve().parents[1]
KEY = "the key of the tests"
START_S = 540


@dataclass
class App:
    """A deployed application."""

    url: str
    dashboard: str
    env: dict[str, str]
    config: dict[str, Any]
    folder: Path
    log: Path
    headers: dict[str, str] = field(default_factory=lambda: {"authorization": f"Bearer {KEY}"})

    def deploy(self, user_config: dict[str, Any] | None = None) -> None:
        """`serve deploy`; returns at once."""
        config = json.loads(json.dumps(self.config))
        if user_config is not None:
            config["applications"][0]["deployments"] = [
                {"name": "model", "user_config": user_config}
            ]
        path = self.folder / "serve.yaml"
        path.write_text(yaml.safe_dump(config))
        done = subprocess.run(
            [_script("serve"), "deploy", "-a", self.dashboard, str(path)],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def health(self) -> dict[str, Any] | None:
        """What `/health` says; None where nothing answers."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=10) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except OSError:
            return None

    def status(self) -> dict[str, Any]:
        """What the dashboard says of the application."""
        with urllib.request.urlopen(f"{self.dashboard}/api/serve/applications/") as answer:
            found: dict[str, Any] = json.load(answer)["applications"].get("mupo", {})
            return {name: found.get(name) for name in ("status", "message", "deployments")}


@contextlib.contextmanager
def running_app(args: dict[str, Any], *, env: dict[str, str] | None = None) -> Iterator[App]:
    """Serve a model until the end of the block.

    Args:
        args: of `build_app`.
        env: added to the environment of the cluster.
    """
    # Ray's sockets live below it, whose paths must be short.
    folder = Path(tempfile.mkdtemp(prefix="mupo_", dir="/tmp"))
    gcs, dashboard, agent, agent_grpc, client, http = _free_ports(6)
    full_env = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"} | (env or {})
    full_env["RAY_AUTH_MODE"] = "disabled"
    full_env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{full_env['PATH']}"
    log = folder / "head.log"
    command = [
        _script("ray"), "start", "--head", "--block", "--num-cpus=8",
        f"--temp-dir={folder}", f"--port={gcs}", f"--dashboard-port={dashboard}",
        f"--dashboard-agent-listen-port={agent}",
        f"--dashboard-agent-grpc-port={agent_grpc}", f"--ray-client-server-port={client}",
        f"--object-store-memory={200 * 2**20}", "--disable-usage-stats",
    ]  # fmt: skip
    config = {
        "http_options": {"host": "127.0.0.1", "port": http},
        "applications": [
            {
                "name": "mupo",
                "route_prefix": "/",
                "import_path": "mupo_ray.serving.app:build_app",
                "args": args,
            }
        ],
    }
    app = App(
        url=f"http://127.0.0.1:{http}",
        dashboard=f"http://127.0.0.1:{dashboard}",
        env=full_env,
        config=config,
        folder=folder,
        log=log,
    )
    deadline = time.monotonic() + START_S
    head = _start_head(app, command, deadline)
    try:
        app.deploy()
        while app.health() is None:
            assert head.poll() is None, log.read_text()
            assert time.monotonic() < deadline, app.status()
            assert (said := app.status())["status"] != "DEPLOY_FAILED", said
            time.sleep(0.5)
        yield app
    finally:
        _end(head)
        shutil.rmtree(folder, ignore_errors=True)


def _start_head(app: App, command: list[str], deadline: float) -> subprocess.Popen[bytes]:
    """Start the cluster; again where a busy machine exceeded Ray's own 30 s."""
    while True:
        with app.log.open("w") as out:
            head = subprocess.Popen(
                command,
                env=app.env,
                cwd=ROOT,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_end_with_tests,
            )
        while head.poll() is None:
            if time.monotonic() > deadline:
                _end(head)
                raise AssertionError(f"the head did not come up: {app.log.read_text()}")
            try:
                with urllib.request.urlopen(f"{app.dashboard}/api/serve/applications/", timeout=10):
                    return head
            except OSError:
                time.sleep(0.5)
        said = app.log.read_text()
        assert "timed out during startup" in said, said


def _end(head: subprocess.Popen[bytes]) -> None:
    if head.poll() is not None:
        return
    below = psutil.Process(head.pid).children(recursive=True)
    head.send_signal(signal.SIGTERM)
    psutil.wait_procs([psutil.Process(head.pid), *below], timeout=15)
    for each in below:
        if each.is_running():
            each.kill()


def _script(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _end_with_tests() -> None:
    """Have the kernel end the head where the tests are killed (Linux)."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)
