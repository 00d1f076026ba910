"""Placement plans on described clusters, and `explain`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mupo_ray.config import load_config
from mupo_ray.errors import ConfigError, PlacementError
from mupo_ray.placement.cluster import GIB, describe_cluster
from mupo_ray.placement.explain import explain
from mupo_ray.placement.plan import Card, Role, actor_options, plan, render

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
QWEN = "model.path=Qwen/Qwen2.5-VL-3B-Instruct"
GPU = ["run.device=cuda", "model.dtype=bfloat16", "placement.check_memory=false"]


def shortage(overrides, spec: str) -> str:
    with pytest.raises(PlacementError) as caught:
        plan(load_config([], overrides), describe_cluster(spec))
    return str(caught.value)


def test_described_clusters():
    gpu = describe_cluster("2x8xH100-80G")
    assert len(gpu.nodes) == 2
    node = gpu.nodes[1]
    assert (node.gpus, node.cpus, node.card, node.card_bytes) == (8, 96, "H100", 80 * GIB)
    assert node.memory_bytes == 1024 * GIB
    tuned = describe_cluster("1x4xA100-40G/48cpu-512G").nodes[0]
    assert (tuned.cpus, tuned.memory_bytes) == (48, 512 * GIB)
    cpu = describe_cluster("3x16cpu-64G").nodes
    assert len(cpu) == 3 and (cpu[0].cpus, cpu[0].gpus, cpu[0].memory_bytes) == (16, 0, 64 * GIB)


@pytest.mark.parametrize("spec", ["", "8xH100", "0x8xH100-80G", "1x2cpu", "1x8xH100-80GB", "x"])
def test_other_descriptions_are_refused(spec):
    with pytest.raises(ConfigError, match="should read like 1x8xH100-80G"):
        describe_cluster(spec)


def test_laptop_plan():
    found = plan(load_config(), describe_cluster("1x2cpu-24G"))
    assert [b.name for b in found.bundles] == ["trainer 0", "engine 0", "embedder 0", "data task 0"]
    # 1 + 0.5 + 0.25 + 0.1
    assert sum(b.cpus for b in found.bundles) == pytest.approx(1.85)
    assert all(b.gpus == 0 and b.node == 0 and not b.gpu_memory for b in found.bundles)


@pytest.mark.parametrize(
    ("overrides", "transport"),
    [
        ([], "object_store"),
        (GPU, "ipc"),
        ([*GPU, "placement.mode=split"], "nccl"),
        ([*GPU, "sync.transport=object_store"], "object_store"),
    ],
)
def test_transport_follows_the_placement(overrides, transport):
    found = plan(load_config([], overrides), describe_cluster("1x8xH100-80G"))
    assert [b.transport for b in found.of(Role.ENGINE)] == [transport]


def test_colocated_engines_reserve_no_gpu_and_use_the_trainers_cards():
    overrides = [*GPU, "train.num_workers=8", "rollout.num_engines=2"]
    config = load_config(
        [], [*overrides, "rollout.tensor_parallel_size=4", "embedder.gpus_per_actor=0.1"]
    )
    found = plan(config, describe_cluster("2x4xH100-80G"))
    assert [b.gpus for b in found.of(Role.TRAINER)] == [1.0] * 8
    engines = found.of(Role.ENGINE)
    assert [b.cards_of for b in engines] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert [(b.gpus, b.node) for b in engines] == [(0.0, 0), (0.0, 1)]
    assert [(b.gpus, b.cards_of) for b in found.of(Role.EMBEDDER)] == [(0.0, (0,))]


def test_split_engines_reserve_gpus():
    overrides = [*GPU, "placement.mode=split", "train.num_workers=4", "rollout.num_engines=2"]
    config = load_config([], [*overrides, "rollout.tensor_parallel_size=2"])
    found = plan(config, describe_cluster("1x8xH100-80G"))
    assert sum(b.gpus for b in found.bundles) == 8
    assert [(b.gpus, b.cards_of) for b in found.of(Role.ENGINE)] == [(2.0, ())] * 2


def test_big_bundles_are_not_shut_out_by_small_ones():
    # Trainers first would leave 2 + 4 free GPUs, and room for one of the two engines of 3.
    overrides = [*GPU, "placement.mode=split", "train.num_workers=2", "rollout.num_engines=2"]
    config = load_config([], [*overrides, "rollout.tensor_parallel_size=3"])
    found = plan(config, describe_cluster("2x4xH100-80G"))
    assert [b.node for b in found.of(Role.TRAINER)] == [0, 1]
    assert [b.node for b in found.of(Role.ENGINE)] == [0, 1]


@pytest.mark.parametrize("available", [0, 1])
def test_d04_too_few_gpus_are_named(available):
    overrides = [*GPU, "placement.mode=split", "train.num_workers=2"]
    spec = "1x64cpu-512G" if available == 0 else "1x1xH100-80G"
    text = shortage(overrides, spec)
    assert f"required 1 GPU, available {0} GPU" in text
    assert f"and {available} GPU free" in text
    assert "trainer" in text and "engine 0" in text


def test_d04_a_bundle_of_60_cpus_beside_free_gpus():
    overrides = [*GPU, "placement.mode=split", "train.num_workers=6", "train.cpus_per_worker=60"]
    text = shortage([*overrides, "rollout.tensor_parallel_size=2"], "1x8xH100-80G/48cpu-512G")
    assert "trainer 0-5: required 60 CPU, available 48 CPU on the best node (node 0)" not in text
    # The engine took half a CPU before the trainers were tried.
    assert "trainer 0-5: required 60 CPU, available 47.5 CPU on the best node (node 0)" in text
    assert "required 1 GPU" not in text


def test_too_few_cpus_are_named():
    text = shortage(["rollout.cpus_per_engine=1.5"], "1x2cpu-24G")
    assert "engine 0: required 1.5 CPU, available 1 CPU" in text
    assert "embedder 0" not in text


def test_cpu_shares_add_up_without_rounding_trouble():
    plan(
        load_config([], ["embedder.num_actors=4", "data.cpus_per_task=0.5"]),
        describe_cluster("1x3cpu-24G"),
    )


def test_too_little_memory_is_named_unless_unchecked():
    # Of a model that is nowhere to be read, only the processes are counted.
    text = shortage(["model.path=no/such/model"], "1x2cpu-3G")
    assert "engine 0: required 2.2 GiB of memory (estimate), available 2.0 GiB" in text
    plan(load_config([], ["placement.check_memory=false"]), describe_cluster("1x2cpu-3G"))


def test_too_small_cards_are_named_unless_unchecked():
    overrides = ["run.device=cuda", "model.dtype=bfloat16", QWEN]
    text = shortage(overrides, "1x1xL4-24G")
    assert "card of trainer 0" in text and "GiB of 24.0 GiB, exceeds by" in text
    plan(
        load_config([], [*overrides, "placement.check_memory=false"]),
        describe_cluster("1x1xL4-24G"),
    )


def test_an_engine_over_two_nodes_is_refused():
    overrides = [*GPU, "train.num_workers=4", "rollout.tensor_parallel_size=4"]
    text = shortage(overrides, "2x2xH100-80G")
    assert "engine 0: required the GPUs of trainers 0, 1, 2, 3 on one node" in text


def test_actor_options():
    config = load_config([], [*GPU, "train.num_workers=4", "rollout.tensor_parallel_size=2"])
    engine = plan(config, describe_cluster("1x4xH100-80G")).of(Role.ENGINE)[0]
    node = "a" * 56
    cards = [Card(node_id=node, gpu=gpu) for gpu in ("3", "1", "0", "2")]
    options = actor_options(engine, cards)
    assert (options["num_gpus"], options["num_cpus"]) == (0.0, 0.5)
    assert options["runtime_env"]["env_vars"]["CUDA_VISIBLE_DEVICES"] == "3,1"
    strategy = options["scheduling_strategy"]
    assert (strategy.node_id, strategy.soft) == (node, False)
    with pytest.raises(PlacementError, match="on one node"):
        actor_options(engine, [cards[0], Card(node_id="b" * 56, gpu="0")])
    with pytest.raises(ValueError, match="got 1 cards"):
        actor_options(engine, cards[:1])
    laptop = plan(load_config(), describe_cluster("1x2cpu-24G")).of(Role.ENGINE)[0]
    assert actor_options(laptop) == {"num_cpus": 0.5, "num_gpus": 0.0}


def test_table_shows_the_plan_beside_what_is_free():
    cluster = describe_cluster("1x8xH100-80G")
    config = load_config([CONFIGS / "qwen2_5_vl_3b.yaml"])
    lines = render(plan(config, cluster), cluster).splitlines()
    assert "colocated on cuda, weights by ipc" in lines[0]
    trainer = next(line.split() for line in lines if "trainer 0-7" in line)
    assert trainer[:4] == ["trainer", "0-7", "4", "1"]
    assert any("reserves no GPU" in line for line in lines)
    # 8 x 4 + 8 x 2 + 2 x 1 + 1 of 96 CPUs, 8 of 8 GPUs.
    assert lines[-1].split()[2:4] == ["51/96", "8/8"]


@pytest.mark.parametrize(
    "names",
    [
        ["qwen2_5_vl_3b"],
        ["qwen2_5_vl_7b"],
        ["qwen2_5_vl_3b", "release_3b"],
        ["qwen2_5_vl_7b", "release_7b"],
    ],
    ids="+".join,
)
def test_presets_fit_one_node_of_h100(names):
    config = load_config([CONFIGS / f"{name}.yaml" for name in names])
    cluster = describe_cluster("1x8xH100-80G")
    plan(config, cluster)
    text = explain(config, cluster)
    assert "exceeds" not in text and text.count(", fits") >= 2


def test_explain_says_by_how_much_a_card_is_too_small():
    config = load_config([CONFIGS / "qwen2_5_vl_7b.yaml"])
    text = explain(config, describe_cluster("1x8xA100-40G"))
    assert "exceeds by" in text
    assert "8,292,166,656 parameters" in text


def test_explain_gives_the_lack_in_place_of_a_plan():
    text = explain(load_config([CONFIGS / "qwen2_5_vl_3b.yaml"]), describe_cluster("1x2cpu-24G"))
    assert "required 1 GPU, available 0 GPU" in text


def test_explain_needs_neither_ray_nor_torch():
    code = (
        "import sys\n"
        "from mupo_ray.config import load_config\n"
        "from mupo_ray.placement.explain import explain\n"
        "from mupo_ray.placement.cluster import describe_cluster\n"
        "explain(load_config(), describe_cluster('1x2cpu-24G'))\n"
        "big = {'ray', 'torch', 'transformers', 'vllm', 'deepspeed'} & set(sys.modules)\n"
        "sys.exit(f'imported {sorted(big)}' if big else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
