"""Load on the served model beside vLLM's own OpenAI server: same model, cores, requests.

    python benchmarks/bench_serving.py [--model runs/demo/model] [--rounds 3]

Ours is measured twice: behind Serve's own proxy, and behind the HAProxy that Ray brings along.
Each server runs alone, one after the other in every round, and is asked by 1, 8 and 64 clients at
once: a chat with a picture, 32 tokens at temperature 1, whole and streamed. Printed are requests a
second, the latencies p50, p95 and p99, and their ratios to vLLM's.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import io
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from serving_app import App, running_app  # noqa: E402

CLIENTS = (1, 8, 64)
REQUESTS = {1: 40, 8: 160, 64: 512}
MAX_MODEL_LEN = 256
MAX_SEQS = 256
NUM_TOKENS = 32
START_S = 600


@dataclass(frozen=True)
class Figures:
    """One server under one load."""

    per_s: float
    latencies_s: tuple[float, ...]

    def percentile_ms(self, percent: float) -> float:
        return 1000 * float(np.percentile(self.latencies_s, percent))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="runs/demo/model", help="Hugging Face folder")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", help="file for the figures as JSON")
    args = parser.parse_args()
    os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", RAY_worker_niceness="0")
    model = str(Path(args.model).absolute())
    found: dict[tuple[str, bool, int], list[Figures]] = {}
    for number in range(args.rounds):
        for name, server in SERVERS.items():
            with server(model) as url:
                for is_stream in (False, True):
                    for clients in CLIENTS:
                        asyncio.run(load(url, clients, 2 * clients, is_stream))
                        figures = asyncio.run(load(url, clients, REQUESTS[clients], is_stream))
                        found.setdefault((name, is_stream, clients), []).append(figures)
                        print(
                            f"round {number} {name:7} stream={is_stream!s:5} {line(figures)}",
                            flush=True,
                        )
    print(table(found))
    if args.out is not None:
        record = [
            {"server": name, "stream": is_stream, "clients": clients, **summary(figures)}
            for (name, is_stream, clients), figures in found.items()
        ]
        Path(args.out).write_text(json.dumps(record, indent=1) + "\n")


@contextlib.contextmanager
def behind_serve(model: str) -> Iterator[str]:
    with ours(model, {}) as app:
        yield app.url


@contextlib.contextmanager
def behind_haproxy(model: str) -> Iterator[str]:
    with ours(model, {"RAY_SERVE_ENABLE_HA_PROXY": "1"}) as app:
        try:
            yield app.url
        finally:
            # It outlives a cluster that just ends.
            serve = Path(sys.executable).with_name("serve")
            subprocess.run([serve, "shutdown", "-y", "-a", app.dashboard], env=app.env, check=True)


def ours(model: str, env: dict[str, str]) -> contextlib.AbstractContextManager[App]:
    return running_app(
        {
            "model": model,
            "engine": {
                "dtype": "float32",
                "max_model_len": MAX_MODEL_LEN,
                "max_num_seqs": MAX_SEQS,
                "kv_cache_gib": 0.25,
                "cpus": 0.5,
            },
        },
        env=env,
    )


@contextlib.contextmanager
def bare_vllm(model: str) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model,
        "--served-model-name", "mupo", "--host", "127.0.0.1", "--port", str(port),
        "--dtype", "float32", "--max-model-len", str(MAX_MODEL_LEN),
        "--max-num-seqs", str(MAX_SEQS), "--kv-cache-memory-bytes", str(2**28),
        "--generation-config", "vllm", "--enforce-eager",
        "--limit-mm-per-prompt", '{"image": 8, "video": 0}',
    ]  # fmt: skip
    env = os.environ | {
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "TORCH_COMPILE_DISABLE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    process = subprocess.Popen(
        command,
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + START_S
        while True:
            assert process.poll() is None, "vLLM's server did not start"
            assert time.monotonic() < deadline, "vLLM's server is late"
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health"):
                break
            time.sleep(0.5)
        yield url
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


SERVERS = {"vllm": bare_vllm, "serve": behind_serve, "haproxy": behind_haproxy}


async def load(url: str, clients: int, requests: int, is_stream: bool) -> Figures:
    """Ask a server: each client sends its next request when the last is answered."""
    pictures = [picture(seed) for seed in range(16)]
    latencies = []
    numbers = iter(range(requests))
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def client() -> None:
            for number in numbers:
                fields = request(pictures[number % len(pictures)], number, is_stream)
                began = time.perf_counter()
                async with session.post(f"{url}/v1/chat/completions", json=fields) as answer:
                    body = await answer.read()
                assert answer.status == 200, body
                assert body.endswith(b"data: [DONE]\n\n" if is_stream else b"}"), body
                latencies.append(time.perf_counter() - began)

        began = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(clients)))
        took = time.perf_counter() - began
    return Figures(per_s=requests / took, latencies_s=tuple(latencies))


def request(url: str, seed: int, is_stream: bool) -> dict[str, Any]:
    content = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": "What is the hidden number?"},
    ]
    return {
        "model": "mupo",
        "messages": [{"role": "user", "content": content}],
        "max_tokens": NUM_TOKENS,
        "ignore_eos": True,
        "temperature": 1.0,
        "seed": seed,
        "stream": is_stream,
    }


def picture(seed: int) -> str:
    pixels = np.random.default_rng(seed).integers(0, 255, (112, 112, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def summary(figures: list[Figures]) -> dict[str, float]:
    """Medians over the rounds."""
    return {
        "requests_per_s": statistics.median(f.per_s for f in figures),
        **{
            f"p{percent}_ms": statistics.median(f.percentile_ms(percent) for f in figures)
            for percent in (50, 95, 99)
        },
    }


def line(figures: Figures) -> str:
    values = "  ".join(f"p{p} {figures.percentile_ms(p):7.1f} ms" for p in (50, 95, 99))
    return f"{figures.per_s:7.1f} requests/s  {values}"


def table(found: dict[tuple[str, bool, int], list[Figures]]) -> str:
    lines = [
        f"{'server':7} {'stream':6} {'clients':>7}  {'requests/s':>10} {'ratio':>5}  "
        + "  ".join(f"{f'p{p} ms':>8} {'ratio':>5}" for p in (50, 95, 99))
    ]
    for is_stream in (False, True):
        for clients in CLIENTS:
            theirs = summary(found["vllm", is_stream, clients])
            for name in SERVERS:
                mine = summary(found[name, is_stream, clients])
                speed = mine["requests_per_s"]
                cells = [f"{name:7} {is_stream!s:6} {clients:7}  {speed:10.1f}"]
                cells[0] += f" {speed / theirs['requests_per_s']:5.2f}"
                cells += [
                    f"{mine[key]:8.1f} {mine[key] / theirs[key]:5.2f}"
                    for key in (f"p{percent}_ms" for percent in (50, 95, 99))
                ]
                lines.append("  ".join(cells))
    return "\n".join(lines)


if __name__ == "__main__":
    main()
