"""The demo's watch over memory: this process and those below it, at their largest."""

from __future__ import annotations

import subprocess
import sys
import time

import psutil

from mupo_ray.demo.memory import MemoryWatch

# Holds 64 MiB until its input ends.
HOLDER = "import sys; kept = bytearray(b'1' * 2**26); print(flush=True); sys.stdin.read()"


def test_peak_counts_what_a_process_below_held() -> None:
    alone = psutil.Process().memory_info().rss
    watch = MemoryWatch(sample_every_s=0.05)
    watch.start()
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.5)
        process.communicate()
    peak = watch.stop()
    assert peak.rss_bytes >= alone + 2**26
    assert 2**26 <= peak.pss_bytes <= peak.rss_bytes
