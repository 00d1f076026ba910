"""The golden run: ten steps of GRPO and of MUPO, from one small model, figure by figure.

`tests/golden/model.safetensors` is the study's plain base model of seed 0 (`make study`), rounded
to bfloat16: its texts are well formed and sometimes right, so that every part of the reward counts.
`tests/golden/<method>.json` holds what came of it. On the machine that wrote the files a run agrees
bit for bit, and `--golden=exact` asks for that; elsewhere the kernels of torch and vLLM round
otherwise and the figures agree to the tolerances below. `--golden=write` writes the files anew, for
a change of numbers that is meant: its commit says why.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageTextToText

from mupo_ray.config import Config
from mupo_ray.demo.puzzle_files import write_puzzles
from mupo_ray.demo.tiny_model import build_tiny_model
from mupo_ray.files import read_jsonl
from mupo_ray.rollout.services import Services
from mupo_ray.train.launch import run_training
from mupo_ray.train.session import Session, open_session

MakeConfig = Callable[..., Config]
MakeGoldenConfig = Callable[[str, str], Config]

GOLDEN = Path(__file__).parents[1] / "golden"
STEPS = 10
METHODS = {
    "grpo": "method={name: grpo}",
    "mupo": "method={name: mupo, num_groups: 2, min_group_size: 3}",
}
# What the clock decides, or a cache that runs share.
MACHINES_OWN = ("time/", "rollout/", "embed/cache_hit_frac", "sync/send_s", "sync/commit_s")

# Of other machines. The same tokens are sampled, so what counts them is equal; what is computed of
# log-probabilities differs by float32 rounding, which ten updates amplify.
METRIC_TOLERANCE = {"rel": 2e-3, "abs": 2e-4}
ADVANTAGE_TOLERANCE = 1e-3
WEIGHT_TOLERANCE = 1e-4
# Zero but for rounding: how far the engine's log-probabilities are from the trainer's.
ROUNDING = "sync/logprob_diff"


def record_of(run_dir: Path) -> dict[str, Any]:
    """What a run leaves that a golden file keeps."""
    steps = [
        {key: value for key, value in row.items() if not key.startswith(MACHINES_OWN)}
        for row in read_jsonl(run_dir / "metrics.jsonl")
    ]
    tables = [
        pq.read_table(run_dir / "rollouts" / f"step_{step:06d}.parquet").to_pylist()
        for step in range(STEPS)
    ]
    state = AutoModelForImageTextToText.from_pretrained(
        run_dir / f"step_{STEPS:06d}" / "hf"
    ).state_dict()
    rounded = b"".join(
        np.round(tensor.double().numpy(), 5).astype(np.float32).tobytes()
        for _, tensor in sorted(state.items())
    )
    return {
        "metrics": steps,
        "tokens_sha256": [
            hashlib.sha256(json.dumps([r["completion_ids"] for r in rows]).encode()).hexdigest()
            for rows in tables
        ],
        "group_ids": [[row["group_id"] for row in rows] for rows in tables],
        "advantages": [[row["advantage"] for row in rows] for rows in tables],
        "weights_sha256": hashlib.sha256(rounded).hexdigest(),
        # Root mean square of each tensor.
        "weights": {
            name: tensor.double().square().mean().sqrt().item()
            for name, tensor in sorted(state.items())
        },
    }


@pytest.fixture(scope="module")
def golden_config(
    make_config: MakeConfig, tmp_path_factory: pytest.TempPathFactory
) -> MakeGoldenConfig:
    """Settings of a golden run: `golden_config("run name", "method={...}")`."""
    folder = tmp_path_factory.mktemp("golden")
    model = build_tiny_model(folder / "model", 0)
    weights = load_file(GOLDEN / "model.safetensors")
    assert weights.keys() == load_file(model / "model.safetensors").keys()
    save_file(
        {name: tensor.float() for name, tensor in weights.items()},
        model / "model.safetensors",
        metadata={"format": "pt"},
    )
    data = write_puzzles(folder, 7, {"train": 64, "eval": 8})

    def make(name: str, method: str) -> Config:
        return make_config(
            name,
            f"model.path={model}",
            f"data.train={data['train']}",
            f"eval.path={data['eval']}",
            "rollout.max_new_tokens=32",
            method,
            "reward.overlong={buffer_tokens: 16, penalty: 0.2}",
            "loss.kl_coef=0.01",
            f"train.num_steps={STEPS}",
            "train.optimizer={lr: 2e-4, warmup_steps: 2}",
            f"eval.every_steps={STEPS}",
            "eval.num_prompts=8",
            f"checkpoint.every_steps={STEPS}",
        )

    return make


@pytest.fixture(scope="module")
def golden_session(services: Services, golden_config: MakeGoldenConfig) -> Iterator[Session]:
    """A train worker for golden runs: their engine gets its weights before it samples."""
    config = golden_config("golden", METHODS["grpo"])
    with open_session(config, services) as running:
        yield running


@pytest.mark.parametrize("method", METHODS)
def test_a_run_is_the_golden_one(
    method: str,
    golden_session: Session,
    golden_config: MakeGoldenConfig,
    request: pytest.FixtureRequest,
) -> None:
    first, second = (
        record_of(
            run_training(golden_config(f"{method}_{n}", METHODS[method]), session=golden_session)
        )
        for n in (1, 2)
    )
    assert first == second, "two runs on one machine differ"

    file = GOLDEN / f"{method}.json"
    mode = request.config.getoption("golden")
    if mode == "write":
        file.write_text(json.dumps(first, indent=1) + "\n")
    golden = json.loads(file.read_text())
    if mode == "exact":
        assert first == golden
    assert_close(first, golden)


def assert_close(record: dict[str, Any], golden: dict[str, Any]) -> None:
    assert record["tokens_sha256"] == golden["tokens_sha256"]
    assert record["group_ids"] == golden["group_ids"]
    for step, (mine, other) in enumerate(zip(record["metrics"], golden["metrics"], strict=True)):
        assert mine.keys() == other.keys(), f"step {step}"
        for key, value in mine.items():
            if key.startswith(ROUNDING):
                assert value <= 1e-4, f"step {step}: {key}"
            else:
                assert value == pytest.approx(other[key], **METRIC_TOLERANCE), f"step {step}: {key}"
    for step, (values, others) in enumerate(
        zip(record["advantages"], golden["advantages"], strict=True)
    ):
        assert values == pytest.approx(others, abs=ADVANTAGE_TOLERANCE), f"step {step}"
    assert record["weights"] == pytest.approx(golden["weights"], abs=WEIGHT_TOLERANCE)


def test_the_golden_runs_reward_what_they_should() -> None:
    """The files say that every part of the reward was at work, or they would judge nothing."""
    for method in METHODS:
        golden = json.loads((GOLDEN / f"{method}.json").read_text())
        steps = golden["metrics"][1:]
        assert len(steps) == STEPS
        assert max(row["reward/accuracy/mean"] for row in steps) > 0.1
        assert min(row["reward/overlong/mean"] for row in steps) < 0
        assert all(any(a != 0.0 for a in values) for values in golden["advantages"])
        if method == "mupo":
            assert max(row["reward/diversity/mean"] for row in steps) > 0.01
