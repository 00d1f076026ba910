"""The update on real DeepSpeed (gloo), one rank and two, on a tiny random model."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_models import build_qwen3

from mupo_ray.demo.tiny_model import build_tiny_model
from mupo_ray.errors import CheckpointError
from mupo_ray.runs.folder import latest_complete, verify

WORKER = Path(__file__).with_name("update_worker.py")
Result = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models, and what one rank and two ranks left."""
    folder = tmp_path_factory.mktemp("update")
    build_tiny_model(folder / "tied", 0)
    build_tiny_model(folder / "untied", 0, tie=False)
    build_qwen3(folder / "qwen3")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    base = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    base |= {"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    base["PYTHONPATH"] = str(WORKER.parents[1])
    ranks: list[tuple[int, dict[str, str]]] = [(1, {})] + [
        (2, {"RANK": str(r), "LOCAL_RANK": str(r), "WORLD_SIZE": "2"}) for r in range(2)
    ]
    processes = []
    for number, (world, env) in enumerate(ranks):
        log = (folder / f"log_{number}.txt").open("w")
        processes.append(
            subprocess.Popen(
                [sys.executable, str(WORKER), str(world), str(folder)],
                env=base | env,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        )
    try:
        for number, process in enumerate(processes):
            code = process.wait(timeout=540)
            log_text = (folder / f"log_{number}.txt").read_text()[-4000:]
            assert code == 0, f"process {number} ended with {code}\n{log_text}"
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return folder


@pytest.fixture(scope="module")
def one(folder: Path) -> Result:
    result: Result = torch.load(folder / "world_1.pt", weights_only=False)
    return result


@pytest.fixture(scope="module")
def two(folder: Path) -> Result:
    result: Result = torch.load(folder / "world_2.pt", weights_only=False)
    return result


def distance(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """Largest difference of any weight."""
    assert list(a) == list(b)
    return max(float((a[name].float() - b[name].float()).abs().max()) for name in a)


def assert_same_training(a: Result, b: Result, moved: float = 2e-4) -> None:
    """Equal metrics and weights up to float32 noise, where training moved the weights."""
    for mine, other in zip(a["stats"], b["stats"], strict=True):
        for name, value in mine.items():
            assert other[name] == pytest.approx(value, rel=1e-5, abs=1e-5), name
    assert distance(a["weights"], b["weights"]) < 1e-5
    assert distance(a["weights"], a["before"]) > moved


@pytest.mark.parametrize("name", ["many", "checkpointing"])
def test_micro_batches_do_not_matter(one: Result, name: str) -> None:
    assert_same_training(one["big"], one[name])


@pytest.mark.parametrize("name", ["vision_only", "off"])
def test_what_responses_share_does_not_matter(one: Result, name: str) -> None:
    assert one["big"]["sharing"] == "packed"
    assert one[name]["sharing"] == name
    assert_same_training(one["big"], one[name])


@pytest.mark.parametrize("name", ["zero0", "zero2", "zero3", "no_data0", "no_data3"])
def test_two_ranks_equal_one(one: Result, two: Result, name: str) -> None:
    assert two[name]["sharing"] == "packed"
    assert_same_training(one["big"], two[name])


@pytest.mark.parametrize("name", ["tied@1.0", "untied@0.6", "qwen3@1.0"])
def test_scores_equal_a_naive_forward(one: Result, name: str) -> None:
    result = one["scored"][name]
    assert result["num_batches"] > 1
    assert result["logprobs"] < 1e-5
    assert result["entropy"] < 1e-5


@pytest.mark.parametrize("name", ["tied@1.0", "untied@0.6", "qwen3@1.0"])
def test_padding_is_never_seen(one: Result, name: str) -> None:
    assert one["scored"][name]["padding"] == 0.0


@pytest.mark.parametrize("name", ["lora", "lora0", "lora2", "lora3"])
def test_adapters_alone_are_trained_and_travel_merged(one: Result, two: Result, name: str) -> None:
    result = (one | two)[name]
    assert {n.split(".")[-4] for n in result["trained"]} == {"q_proj", "v_proj", "down_proj"}
    assert all("language_model" in n and ".lora_" in n for n in result["trained"])
    assert list(result["weights"]) == list(one["big"]["weights"])
    changed = {n for n, w in result["weights"].items() if not torch.equal(w, result["before"][n])}
    assert {n.split(".")[-2] for n in changed} == {"q_proj", "v_proj", "down_proj"}
    assert distance(result["before"], one["big"]["before"]) == 0.0
    assert result["merged"] < 1e-5
    assert result["reference"] < 1e-6
    assert result["stats"][1]["loss/kl"] > 0


@pytest.mark.parametrize("name", ["lora0", "lora2", "lora3"])
def test_two_ranks_train_the_same_adapters(one: Result, two: Result, name: str) -> None:
    # From zero, an adapter's product moves as the square of its parts.
    assert_same_training(one["lora"], two[name], moved=1e-4)


def test_frozen_vision_stays(one: Result) -> None:
    before, after = one["frozen"]["before"], one["frozen"]["weights"]
    for name in before:
        assert torch.equal(before[name], after[name]) == name.startswith("visual."), name


def test_step_without_data_moves_nothing(one: Result) -> None:
    result = one["no_data"]
    assert distance(result["before"], result["weights"]) == 0.0
    assert result["stats"]["optim/skipped"] == 1.0
    assert result["steps_done"] == 2


def test_recomputed_old_logprobs(one: Result) -> None:
    result = one["recompute"]
    assert result["steps"] == 2
    assert result["stats"]["sync/logprob_diff_max"] < 1e-5
    assert distance(result["weights"], result["as_sampler"]) < 1e-5


@pytest.mark.parametrize("breakage", ["loss", "gradient"])
def test_what_is_not_finite_is_refused(one: Result, breakage: str) -> None:
    result = one["refused"][breakage]
    (message,) = result["messages"]
    assert breakage in message
    assert "weights are as before" in message
    assert distance(result["before"], result["weights"]) == 0.0


@pytest.mark.parametrize("name", ["loss0", "loss3", "gradient2", "gradient3"])
def test_all_ranks_refuse_what_one_broke(two: Result, name: str) -> None:
    result = two[f"refused_{name}"]
    first, second = result["messages"]
    assert first == second
    assert name[:-1] in first
    assert distance(result["before"], result["weights"]) == 0.0


@pytest.mark.parametrize("name", ["resume", "resume2", "resume3"])
def test_resume_continues_exactly(one: Result, two: Result, name: str) -> None:
    result = (one | two)[name]
    assert result["state_is_kept"]
    assert result["rng_is_kept"]
    assert distance(result["straight"], result["resumed"]) == 0.0
    assert result["straight_stats"] == result["resumed_stats"]
    # The rate of the second of two warm-up steps, not the first's again.
    assert result["resumed_stats"]["optim/lr"] == pytest.approx(2e-4)


def test_bfloat16_keeps_float32_masters(two: Result) -> None:
    norms = two["small_steps"]["norms"]
    ones = torch.ones_like(norms[0])
    assert torch.equal(norms[0], ones)
    # A step of 1e-3 is under half of bfloat16's spacing below 1, 0.0039; a few add up past it.
    assert not torch.equal(norms[-1], ones)
    assert two["small_steps"]["dtypes"] == {"torch.bfloat16"}


@pytest.mark.parametrize("model", ["tied", "untied"])
def test_weights_have_saved_names(folder: Path, one: Result, two: Result, model: str) -> None:
    weights = one["big"]["before"] if model == "tied" else two["untied3"]
    saved = load_file(folder / model / "model.safetensors")
    assert set(weights) == set(saved)
    assert all(torch.equal(weights[name], saved[name]) for name in saved)


@pytest.mark.parametrize("name", ["one", "two2", "two3"])
def test_hf_folder_is_plain(folder: Path, name: str) -> None:
    from transformers import AutoModelForImageTextToText, AutoProcessor

    hf = folder / name / "hf"
    assert set(load_file(hf / "model.safetensors")) == set(
        load_file(folder / "tied" / "model.safetensors")
    )
    model, info = AutoModelForImageTextToText.from_pretrained(hf, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert model.lm_head.weight is model.model.language_model.embed_tokens.weight
    assert (hf / "generation_config.json").is_file()
    assert AutoProcessor.from_pretrained(hf).tokenizer("row").input_ids


def test_missing_shard_is_named_and_passed_over(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    for step, source in [(1, "one"), (2, "two2")]:
        shutil.copytree(folder / source, run / f"step_{step:06d}")
        state_file = run / f"step_{step:06d}" / "state.json"
        state_file.write_text(json.dumps(json.loads(state_file.read_text()) | {"step": step}))
    newest = run / "step_000002"
    assert latest_complete(run) == newest

    (shard, _) = sorted(newest.rglob("*_optim_states.pt"))
    content = shard.read_bytes()
    shard.unlink()
    with pytest.raises(CheckpointError, match=f"optimizer shard trainer/{shard.name} is missing"):
        verify(newest)
    assert latest_complete(run) == run / "step_000001"
    assert "optimizer shard" in caplog.text

    shard.write_bytes(content[:-1])
    with pytest.raises(CheckpointError, match=f"has {len(content) - 1} bytes instead of"):
        verify(newest)
    shard.write_bytes(content)
    assert verify(newest).step == 2

    (newest / "state.json").unlink()
    with pytest.raises(CheckpointError, match="written last"):
        verify(newest)


def test_other_zero_stage_is_refused(two: Result) -> None:
    assert "zero_stage = 3 and this run has 0" in two["other_stage"]
