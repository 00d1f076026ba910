"""Parameter counts and memory estimates against real models and numbers worked out by hand."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)

from mupo_ray.config import load_config
from mupo_ray.errors import ConfigError
from mupo_ray.placement import memory
from mupo_ray.placement.model_size import find_size, size_from_config
from mupo_ray.settings.sections import LoraConfig
from mupo_ray.train.adapter import add_adapter

GPU = ["run.device=cuda", "model.dtype=bfloat16", "rollout.num_engines=1"]
QWEN_3B = "Qwen/Qwen2.5-VL-3B-Instruct"
IDS = {
    "image_token_id": 500,
    "video_token_id": 501,
    "vision_start_token_id": 502,
    "vision_end_token_id": 503,
}
TEXT = {
    "vocab_size": 512,
    "hidden_size": 96,
    "intermediate_size": 200,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def qwen2_5(tied: bool = True, layers: int = 3, depth: int = 2):
    config = Qwen2_5_VLConfig(
        text_config={
            **TEXT,
            "num_hidden_layers": layers,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "mrope_section": [2, 3, 3],
            },
        },
        vision_config={
            "depth": depth,
            "hidden_size": 64,
            "num_heads": 4,
            "intermediate_size": 144,
            "out_hidden_size": 96,
            "fullatt_block_indexes": [0],
        },
        tie_word_embeddings=tied,
        **IDS,
    )
    torch.manual_seed(0)
    return Qwen2_5_VLForConditionalGeneration(config)


def qwen3(tied: bool = True):
    config = Qwen3VLConfig(
        text_config={
            **TEXT,
            "head_dim": 32,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "mrope_section": [6, 5, 5],
                "mrope_interleaved": True,
            },
        },
        vision_config={
            "depth": 3,
            "hidden_size": 64,
            "num_heads": 4,
            "intermediate_size": 144,
            "out_hidden_size": 96,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0, 1],
        },
        tie_word_embeddings=tied,
        **IDS,
    )
    return Qwen3VLForConditionalGeneration(config)


@pytest.mark.parametrize("build", [qwen2_5, qwen3])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_count_is_exact(build, tied, tmp_path):
    model = build(tied)
    model.config.save_pretrained(tmp_path)
    size = find_size(str(tmp_path))
    assert size is not None
    assert size.params == sum(p.numel() for p in model.parameters())
    assert size.vision_params == sum(p.numel() for p in model.model.visual.parameters())


@pytest.mark.parametrize(
    ("name", "params"),
    [(QWEN_3B, 3_754_622_976), ("Qwen/Qwen2.5-VL-7B-Instruct", 8_292_166_656)],
)
def test_published_totals(name, params):
    size = find_size(name)
    assert size is not None and size.params == params


def test_unknown_models(tmp_path):
    assert find_size(str(tmp_path / "nothing")) is None
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(ConfigError, match="model_type is 'llama', should be qwen2_5_vl"):
        find_size(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2_5_vl"}))
    with pytest.raises(ConfigError, match="no usable dimensions"):
        find_size(str(tmp_path))


def test_float32_states_are_exact_bytes():
    model = qwen2_5()
    optimizer = torch.optim.AdamW(model.parameters())
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    moments = [
        t for s in optimizer.state.values() for k, t in s.items() if k in ("exp_avg", "exp_avg_sq")
    ]
    size = size_from_config(model.config.to_dict())
    device, host = memory.trainer_states(size, load_config())
    assert device == {
        "weights": sum(p.nbytes for p in model.parameters()),
        "gradients": sum(p.grad.nbytes for p in model.parameters()),
        "optimizer": sum(t.nbytes for t in moments),
    }
    assert host == {}


@pytest.mark.parametrize(
    ("stage", "weights", "gradients", "optimizer", "step"),
    # Bytes a parameter over 8 workers in bfloat16: whole or an eighth of 2, 4, 12 and 4.
    [(0, 2, 4, 1.5, 0), (1, 2, 4, 1.5, 0), (2, 2, 0.5, 1.5, 0.5), (3, 0.25, 0.5, 1.5, 0.5)],
)
def test_zero_stages_share_out(stage, weights, gradients, optimizer, step):
    size = find_size(QWEN_3B)
    assert size is not None
    config = load_config([], [*GPU, "train.num_workers=8", f"train.zero_stage={stage}"])
    device, _ = memory.trainer_states(size, config)
    assert device["weights"] == weights * size.params
    assert device["gradients"] == gradients * size.params
    assert device["optimizer"] == optimizer * size.params
    assert device.get("gradients at the step", 0) == step * size.params


def test_offload_moves_the_optimizer_to_the_host():
    size = find_size(QWEN_3B)
    assert size is not None
    config = load_config([], [*GPU, "train.zero_stage=2", "train.offload_optimizer=true"])
    device, host = memory.trainer_states(size, config)
    assert (device["gradients"], device["optimizer"]) == (0, 0)
    assert sum(host.values()) == 16 * size.params


def test_frozen_vision_has_no_gradient():
    size = find_size(QWEN_3B)
    assert size is not None
    config = load_config([], [*GPU, "model.freeze_vision=true"])
    device, _ = memory.trainer_states(size, config)
    assert device["weights"] == 2 * size.params
    assert device["gradients"] == 4 * size.text_params


@pytest.mark.parametrize("build", [qwen2_5, qwen3])
def test_adapters_are_counted_as_peft_makes_them(build):
    settings = LoraConfig(rank=3)
    model = build()
    size = size_from_config(json.loads(model.config.to_json_string()))
    add_adapter(model, settings, seed=0)
    made = sum(p.numel() for name, p in model.named_parameters() if ".lora_" in name)
    assert size.adapter_params(settings.rank, settings.targets) == made


def test_adapters_need_no_reference_and_little_state():
    size = find_size(QWEN_3B)
    assert size is not None
    config = load_config([], [*GPU, "model.lora.rank=8", 'model.lora.targets=["q_proj"]'])
    # 36 layers, 2048 wide: 8 x (2048 + 2048) numbers each.
    adapters = 36 * 8 * 4096
    device, _ = memory.trainer(size, config)
    assert device["weights"] == 2 * (size.params + adapters)
    assert device["gradients"] == 4 * adapters
    assert device["optimizer"] == 12 * adapters
    assert "reference policy" not in device


def test_reference_policy_costs_a_copy_unless_kl_is_off():
    size = find_size(QWEN_3B)
    assert size is not None
    on, _ = memory.trainer(size, load_config([], GPU))
    off, _ = memory.trainer(size, load_config([], [*GPU, "loss.kl_coef=0"]))
    assert on["reference policy"] == 2 * size.params
    assert sum(on.values()) - sum(off.values()) == 2 * size.params


def saved_bytes(model, **inputs) -> int:
    """Bytes of the distinct storages that autograd keeps for backward, parameters left out."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)  # held, so no address comes twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model.train()(**inputs, use_cache=False)
    return sum(size for size, _ in kept.values())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_layers_keep_what_the_estimate_says(dtype):
    config = load_config([], [f"model.dtype={dtype}", "train.micro_batch_tokens=256"])
    ids = torch.arange(256).remainder(400).reshape(2, 128)

    def text(layers):
        return saved_bytes(qwen2_5(layers=layers).to(getattr(torch, dtype)), input_ids=ids)

    patches = 16 * 16
    image = torch.tensor([[502] + [500] * (patches // 4) + [503]])

    def vision(depth):
        return saved_bytes(
            qwen2_5(layers=1, depth=depth).to(getattr(torch, dtype)),
            input_ids=image,
            mm_token_type_ids=(image == 500).int(),
            pixel_values=torch.zeros(patches, 3 * 2 * 14 * 14, dtype=getattr(torch, dtype)),
            image_grid_thw=torch.tensor([[1, 16, 16]]),
        )

    def estimate(layers, depth):
        size = size_from_config(qwen2_5(layers=layers, depth=depth).config.to_dict())
        return memory.activations(size, config)

    assert text(3) - text(1) == pytest.approx(estimate(3, 1) - estimate(1, 1), rel=0.02)
    # The estimate is for 256 tokens of 4 patches each, the measurement for one image of 256.
    assert 4 * (vision(3) - vision(1)) == pytest.approx(estimate(1, 3) - estimate(1, 1), rel=0.02)


def test_kv_cache_of_a_token():
    # 28 layers x 4 KV heads x 128 x (key, value) x 2 bytes = 57,344.
    size = find_size("Qwen/Qwen2.5-VL-7B-Instruct")
    assert size is not None
    assert memory.kv_bytes_per_token(size, load_config([], GPU)) == 57_344


def test_engine_fills_its_share_of_a_card():
    size = find_size(QWEN_3B)
    assert size is not None
    config = load_config([], [*GPU, "rollout.gpu_memory_utilization=0.4"])
    card, _ = memory.engine(size, config, 80 * 2**30)
    inside = card["weights"] + card["working set"] + card["KV cache"]
    assert inside == int(0.4 * 80 * 2**30)
    small, _ = memory.engine(size, config, 8 * 2**30)
    # 36 layers x 2 KV heads x 128 x 2 x 2 bytes, for the 128 tokens of max_model_len.
    assert small["KV cache"] == 36_864 * 128
