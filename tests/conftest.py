"""Fixtures shared by all tests: the environment of every process, one local Ray, one engine."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from mupo_ray.config import Config
    from mupo_ray.rollout.services import Services
    from mupo_ray.train.session import Session

# Where tests put modules of a user's own, before or after Ray has started.
OWN = tempfile.TemporaryDirectory(prefix="own_modules_")
sys.path.append(OWN.name)

# Before torch, vLLM or Ray is imported, and inherited by every process that tests start.
os.environ.update(
    OMP_NUM_THREADS="1",
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    TORCH_COMPILE_DISABLE="1",
    TOKENIZERS_PARALLELISM="false",
    HF_HUB_OFFLINE="1",
    RAY_AUTH_MODE="disabled",
    # A thread of Ray Data that outlives `ray.shutdown` would otherwise start a second Ray.
    RAY_ENABLE_AUTO_CONNECT="0",
    # Idle workers are started as tests need them, and at the priority of what they wait for.
    RAY_prestart_worker_first_driver="0",
    RAY_worker_niceness="0",
    # Workers import rewards and methods of one's own from there, as a user's would.
    PYTHONPATH=os.pathsep.join(
        [str(Path(__file__).parent), OWN.name, os.environ.get("PYTHONPATH", "")]
    ),
)

MakeConfig = Callable[..., "Config"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--golden`: how the golden run is held against its files."""
    parser.addoption(
        "--golden",
        choices=("close", "exact", "write"),
        default="close",
        help="close to the files (any machine), equal to them (the same one), or write them",
    )


@pytest.fixture(scope="session")
def own_folder() -> Path:
    """A folder that every process of the tests imports from."""
    return Path(OWN.name)


@pytest.fixture(scope="session")
def ray_local() -> Iterator[None]:
    """A Ray of this test run's own; its 8 CPUs are logical, so that no test waits for another."""
    import ray

    ray.init(
        address="local",
        num_cpus=8,
        namespace="mupo_ray",
        object_store_memory=300 * 2**20,
        log_to_driver=False,
    )
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the tiny Qwen2.5-VL with random weights of seed 0, tied."""
    from mupo_ray.demo.tiny_model import build_tiny_model

    return build_tiny_model(tmp_path_factory.mktemp("models") / "tied", 0)


@pytest.fixture(scope="session")
def puzzles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Picture puzzles as parquet: 40 rows to train on, 4 to evaluate on."""
    from mupo_ray.demo.puzzle_files import write_puzzles

    return write_puzzles(tmp_path_factory.mktemp("puzzles"), 0, {"train": 40, "eval": 4})


@pytest.fixture(scope="session")
def make_config(
    tiny_model: Path, puzzles: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> MakeConfig:
    """Settings of a small run: `make_config("name", "section.field=value", ...)`."""
    import yaml

    from mupo_ray.config import load_config

    folder = tmp_path_factory.mktemp("runs")
    base = {
        "run": {"storage_path": str(folder)},
        "model": {"path": str(tiny_model)},
        "data": {"train": str(puzzles["train"]), "prompts_per_step": 4},
        "rollout": {
            "num_generations": 6,
            "max_new_tokens": 16,
            "max_num_seqs": 64,
            "max_model_len": 256,
            "kv_cache_gib": 0.25,
            "max_restarts": 8,
        },
        "method": {"name": "mupo", "num_groups": 2, "min_group_size": 3},
        "train": {"num_steps": 2},
        "eval": {
            "path": str(puzzles["eval"]),
            "every_steps": 2,
            "num_prompts": 2,
            "num_samples": 4,
            "pass_k": [1, 2, 4],
        },
        "checkpoint": {"every_steps": 2},
        "tracking": {"cohorts_every_steps": 1},
    }
    # A file, so that an override with another method replaces the base's whole.
    file = folder / "base.yaml"
    file.write_text(yaml.safe_dump(base))

    def make(name: str, *overrides: str) -> Config:
        return load_config([file], [f"run.name={name}", *overrides])

    return make


@pytest.fixture(scope="session")
def services(ray_local: None, make_config: MakeConfig) -> Iterator[Services]:
    """One engine and one embedder for `tiny_model`, started once for all tests."""
    from mupo_ray.placement.plan import wait_for_plan
    from mupo_ray.rollout.services import services_of

    config = make_config("services")
    with services_of(config, wait_for_plan(config)) as running:
        yield running


@pytest.fixture(scope="session")
def session(services: Services, make_config: MakeConfig) -> Iterator[Session]:
    """One train worker beside `services`, started once for all tests."""
    from mupo_ray.train.session import open_session

    with open_session(make_config("session"), services) as running:
        yield running


@pytest.fixture
def on_actor() -> Callable[[Any, Callable[[Any], Any]], Any]:
    """Run a function on an actor's instance: tests break a running engine with it."""
    import ray

    def call(actor: Any, function: Callable[[Any], Any]) -> Any:
        return ray.get(actor.__ray_call__.remote(function), timeout=120)

    return call
