"""Preparing data: rows a second, and peak memory at two sizes of a synthetic set with pictures.

Run: python benchmarks/bench_data.py [--rows 2000 20000] [--workers 1 2] [--against 1000]

Each measurement is a process of its own, so that its peak memory (of that process, or with Ray of
all processes below it, shared pages counted once) is the preparation's alone. CPU time, of all of
them as well, is what a busy machine does not change much. Rows come as Parquet with a PNG of
224 x 168 each, every picture another one.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

_SAMPLE_EVERY_S = 0.2
_GROUP = 500


def write_rows(path: Path, count: int, seed: int) -> None:
    """Parquet as it is found on the hub: pictures inside, hundreds of rows a group."""
    images = pa.list_(pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    schema = pa.schema([("problem", pa.string()), ("images", images), ("answer", pa.string())])
    rng = np.random.default_rng(seed)
    with pq.ParquetWriter(path, schema) as writer:
        for first in range(0, count, _GROUP):
            rows = [
                {
                    "problem": f"<image>In figure {i} the angle at A is {i % 90}. How large is B?",
                    "images": [{"bytes": picture(rng), "path": f"{i}.png"}],
                    "answer": str(i % 90),
                }
                for i in range(first, min(first + _GROUP, count))
            ]
            writer.write_table(pa.Table.from_pylist(rows, schema=schema))


def picture(rng: np.random.Generator) -> bytes:
    """A PNG of about 60 KB: soft colour with grain."""
    coarse = Image.fromarray(rng.integers(0, 255, (6, 8, 3), dtype=np.uint8))
    soft = np.asarray(coarse.resize((224, 168), Image.Resampling.BICUBIC), np.int16)
    grain = rng.integers(-6, 7, soft.shape, dtype=np.int16)
    buffer = io.BytesIO()
    Image.fromarray(np.clip(soft + grain, 0, 255).astype(np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


class Watch(threading.Thread):
    """Largest proportional set size, and CPU time, of this process and all below it."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0
        self.cpu: dict[int, float] = {}
        self.stopped = threading.Event()

    def run(self) -> None:
        root = psutil.Process()
        while not self.stopped.wait(_SAMPLE_EVERY_S):
            total = 0
            for process in [root, *root.children(recursive=True)]:
                try:
                    memory, cpu = process.memory_full_info(), process.cpu_times()
                except psutil.Error:
                    continue
                total += getattr(memory, "pss", memory.rss)
                self.cpu[process.pid] = cpu.user + cpu.system
            self.peak = max(self.peak, total)


def measure(source: Path, out: Path, workers: int, against: str) -> dict[str, float]:
    from mupo_ray.prepare.prepare import PrepareConfig, prepare

    watch = Watch()
    watch.start()
    cpu_start, start = time.process_time(), time.perf_counter()
    config = PrepareConfig(
        source=str(source),
        out=out,
        workers=workers,
        against=(against,) if against else (),
        removes_contaminated=False,
    )
    report = prepare(config)
    wall_s = time.perf_counter() - start
    watch.stopped.set()
    watch.join()
    own = psutil.Process().pid
    cpu_s = time.process_time() - cpu_start + sum(s for pid, s in watch.cpu.items() if pid != own)
    return {
        "rows_per_s": report.rows_kept / wall_s,
        "wall_s": wall_s,
        "cpu_ms": 1e3 * cpu_s / report.rows_in,
        "peak_bytes": watch.peak,
    }


def measured(source: Path, out: Path, workers: int, against: str) -> dict[str, float]:
    """As `measure`, in a process of its own."""
    command = [sys.executable, __file__, "--measure", str(source), str(out), str(workers), against]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: dict[str, float] = json.loads(printed.splitlines()[-1])
    shutil.rmtree(out)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[2000, 20000])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--against", type=int, default=1000, help="rows of an evaluation set")
    parser.add_argument("--measure", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        source, out, workers, against = args.measure
        print(json.dumps(measure(Path(source), Path(out), int(workers), against)))
        return
    print(f"{'rows':>6} {'tasks':>5} {'against':>7} | rows/s  wall s  CPU ms a row  peak MiB")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_rows(folder / "eval.parquet", args.against, seed=1)
        for rows in args.rows:
            write_rows(folder / "rows.parquet", rows, seed=0)
            for workers in args.workers:
                for against in ("", str(folder / "eval.parquet")):
                    found = measured(folder / "rows.parquet", folder / "out", workers, against)
                    print(
                        f"{rows:>6} {workers:>5} {args.against if against else 0:>7} | "
                        f"{found['rows_per_s']:>6.0f} {found['wall_s']:>7.1f} "
                        f"{found['cpu_ms']:>13.1f} "
                        f"{found['peak_bytes'] / 2**20:>9.0f}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
