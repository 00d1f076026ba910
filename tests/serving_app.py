"""A served model for tests: a cluster of its own, `serve deploy`, and a way to swap weights."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from ray_head import RAY, free_ports, ray_head

ROOT = Path(__file__).resolve().parents[1]
KEY = "the key of the tests"
START_S = 540
MAX_LEN = 640
"""Tokens of a prompt and its response, of the server that tests share."""


@dataclass
class App:
    """A deployed application."""

    url: str
    dashboard: str
    env: dict[str, str]
    config: dict[str, Any]
    folder: Path
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
            [str(RAY.with_name("serve")), "deploy", "-a", self.dashboard, str(path)],
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
    full_env = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"} | (env or {})
    full_env["RAY_AUTH_MODE"] = "disabled"
    full_env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{full_env['PATH']}"
    (http,) = free_ports(1)
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
    with (
        tempfile.TemporaryDirectory() as folder,
        ray_head(
            full_env,
            _takes_applications,
            log=Path(folder) / "head.log",
            cwd=ROOT,
            timeout_s=START_S,
        ) as head,
    ):
        app = App(
            url=f"http://127.0.0.1:{http}",
            dashboard=head.address,
            env=full_env,
            config=config,
            folder=Path(folder),
        )
        app.deploy()
        deadline = time.monotonic() + START_S
        while app.health() is None:
            assert head.process.poll() is None, (app.folder / "head.log").read_text()
            assert time.monotonic() < deadline, app.status()
            assert (said := app.status())["status"] != "DEPLOY_FAILED", said
            time.sleep(0.5)
        yield app


def _takes_applications(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/api/serve/applications/", timeout=10):
            return True
    except OSError:
        return False
