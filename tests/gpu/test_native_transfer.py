"""Weights by vLLM's own transports, from a model on this process's GPU to an engine on a GPU."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch
from sync_rig import engine_settings
from transformers import AutoModelForImageTextToText

from mupo_ray.data.encode import PromptEncoder
from mupo_ray.data.render import PromptRenderer
from mupo_ray.data.stream import load_prompts
from mupo_ray.rollout.engine import VllmEngine
from mupo_ray.rollout.pool import EnginePool, SamplingPlan
from mupo_ray.sync.native import NativeChannel
from mupo_ray.train.weights import iter_parameters, saved_names

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

BF16_LIMIT = 2e-2


@pytest.mark.parametrize(("transport", "card"), [("ipc", 0), ("nccl", 1)])
def test_engine_and_trainer_agree_after_each_transfer(
    ray_local: None, tiny_model: Path, puzzles: dict[str, Path], transport: str, card: int
) -> None:
    if torch.cuda.device_count() <= card:
        pytest.skip(f"{transport} needs {card + 1} CUDA devices")
    engine = start_engine(tiny_model, transport, card)
    try:
        ray.get(engine.status.remote(), timeout=540)
        model: Any = AutoModelForImageTextToText.from_pretrained(tiny_model, dtype=torch.bfloat16)
        model = model.to("cuda:0")
        names = saved_names(model)
        channel = NativeChannel(
            transport, engines=[engine], is_sender=True, rank=0, pause="keep", timeout_s=120
        )
        for version in (1, 2):
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(0.02 * torch.randn_like(parameter))
            weights = ((names[name], tensor) for name, tensor in iter_parameters(model))
            stats = channel.send(version, weights)
            assert stats is not None
            assert (stats.policy_version, stats.engines) == (version, (0,))
            assert difference(model, engine, tiny_model, puzzles["eval"], version) <= BF16_LIMIT
    finally:
        ray.kill(engine)


def start_engine(folder: Path, transport: str, card: int) -> Any:
    settings = engine_settings(folder, dtype="bfloat16", device="cuda", transport=transport)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    chosen = visible[card] if visible != [""] else str(card)
    options: dict[str, Any] = {"runtime_env": {"env_vars": {"CUDA_VISIBLE_DEVICES": chosen}}}
    return ray.remote(VllmEngine).options(num_cpus=0.5, **options).remote(0, settings)


def difference(model: Any, engine: Any, folder: Path, file: Path, version: int) -> float:
    """Largest difference of any token's log-probability, engine against transformers."""
    prompts = load_prompts(
        file, PromptRenderer.from_pretrained(str(folder), max_prompt_tokens=64), 3
    )
    plan = SamplingPlan(
        num_generations=3, max_new_tokens=12, temperature=1.0, top_p=1.0, seed=version
    )
    pool = EnginePool([engine], forbidden_ids=(), max_num_seqs=16, request_timeout_s=120)
    encoder = PromptEncoder(str(folder))
    worst = 0.0
    for prompt, responses in zip(
        prompts, pool.generate(prompts, plan, version=version), strict=True
    ):
        view = encoder.encode(prompt)
        for response in responses:
            tokens = torch.tensor(response.completion_ids)
            ids = torch.cat([view.input_ids, tokens])[None].to(model.device)
            types = torch.cat([view.mm_token_type_ids, torch.zeros_like(tokens)])[None]
            with torch.no_grad():
                logits = model(
                    input_ids=ids,
                    attention_mask=torch.ones_like(ids),
                    mm_token_type_ids=types.to(model.device),
                    pixel_values=view.pixel_values.to(model.device, model.dtype),
                    image_grid_thw=view.image_grid_thw.to(model.device),
                    use_cache=False,
                ).logits.float()
            logp = torch.log_softmax(logits[0, -len(tokens) - 1 : -1], dim=-1).cpu()
            mine = logp.gather(1, tokens[:, None])[:, 0].numpy()
            worst = max(worst, float(np.abs(mine - response.sampler_logprobs).max()))
    return worst
