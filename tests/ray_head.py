"""A Ray cluster of a test's own; other clusters on this machine stay as they are."""

from __future__ import annotations

import contextlib
import ctypes
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

RAY = Path(sys.executable).with_name("ray")


@dataclass(frozen=True)
class RayHead:
    """A running head node."""

    address: str
    """Of the dashboard, which takes jobs and applications."""
    process: subprocess.Popen[bytes]
    folder: Path
    """Of its files; gone with it."""


@contextlib.contextmanager
def ray_head(
    env: dict[str, str], is_up: Callable[[str], bool], *, log: Path, cwd: Path, timeout_s: float
) -> Iterator[RayHead]:
    """`ray start --head` on ports of its own, until the end of the block.

    Started again where a busy machine kept it from coming up within Ray's own 30 s.

    Args:
        env: of the cluster.
        is_up: whether the dashboard at an address answers.
        log: takes what it prints.
        cwd: where it is started.
        timeout_s: longest wait for it.
    """
    # Ray's sockets live below it, whose paths must be short.
    folder = Path(tempfile.mkdtemp(prefix="ray_", dir="/tmp"))
    gcs, dashboard, agent, agent_grpc, client = free_ports(5)
    command = [
        str(RAY), "start", "--head", "--block", "--num-cpus=8",
        f"--temp-dir={folder}", f"--port={gcs}", f"--dashboard-port={dashboard}",
        f"--dashboard-agent-listen-port={agent}",
        f"--dashboard-agent-grpc-port={agent_grpc}", f"--ray-client-server-port={client}",
        f"--object-store-memory={200 * 2**20}", "--disable-usage-stats",
    ]  # fmt: skip
    address = f"http://127.0.0.1:{dashboard}"
    deadline = time.monotonic() + timeout_s
    process = None
    try:
        while process is None or process.poll() is not None:
            if process is not None:
                said = log.read_text()
                assert "timed out during startup" in said, said
            with log.open("w") as out:
                process = subprocess.Popen(
                    command,
                    env=env,
                    cwd=cwd,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=_end_with_tests,
                )
            while process.poll() is None and not is_up(address):
                assert time.monotonic() < deadline, f"the head is not up: {log.read_text()}"
                time.sleep(0.5)
        yield RayHead(address=address, process=process, folder=folder)
    finally:
        if process is not None and process.poll() is None:
            below = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(signal.SIGTERM)
            psutil.wait_procs([psutil.Process(process.pid), *below], timeout=15)
            for each in below:
                if each.is_running():
                    each.kill()
        shutil.rmtree(folder, ignore_errors=True)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _end_with_tests() -> None:
    """Have the kernel end the head, and so its jobs, where the tests are killed (Linux)."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)
