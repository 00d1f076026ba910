"""Fixtures shared by all tests: the environment of every process, and one local Ray."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

# Before torch, vLLM or Ray is imported, and inherited by every process that tests start.
os.environ.update(
    OMP_NUM_THREADS="1",
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    TORCH_COMPILE_DISABLE="1",
    HF_HUB_OFFLINE="1",
    RAY_AUTH_MODE="disabled",
)


@pytest.fixture(scope="session")
def ray_local() -> Iterator[None]:
    """A Ray of this test run's own, with 2 CPUs."""
    import ray

    ray.init(address="local", num_cpus=2, log_to_driver=False)
    yield
    ray.shutdown()
