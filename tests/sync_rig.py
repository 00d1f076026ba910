"""A trainer's model beside a real engine, for tests of the weights between them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import ray
import torch
from transformers import AutoModelForImageTextToText

from mupo_ray.data.encode import PromptEncoder
from mupo_ray.data.render import PromptRenderer
from mupo_ray.data.stream import load_prompts
from mupo_ray.rollout.engine import EngineSettings, VllmEngine
from mupo_ray.rollout.pool import EnginePool, SamplingPlan
from mupo_ray.sync.broadcast import ObjectStoreChannel, SyncStats, WeightPublisher
from mupo_ray.train.weights import iter_parameters, saved_names
from mupo_ray.types import Prompt, Response

Weights = Sequence[tuple[str, torch.Tensor]]

START_LIMIT_S = 540
"""An engine is up in 10 to 30 s on an idle machine; a limit ends what hangs and times nothing."""


@dataclass
class Rig:
    """A trainer's model beside an engine, and all that carries weights from one to the other."""

    folder: Path
    engine: Any
    publisher: Any
    publisher_name: str
    prompts: list[Prompt]
    dtype: str = "float32"
    version: int = 1000
    channel: ObjectStoreChannel = field(init=False)

    def __post_init__(self) -> None:
        self.model: Any = AutoModelForImageTextToText.from_pretrained(
            self.folder, dtype=getattr(torch, self.dtype)
        )
        self.encoder = PromptEncoder(str(self.folder))
        self.noise = torch.Generator().manual_seed(0)
        self.channel = self.make_channel(ObjectStoreChannel)

    def make_channel(self, kind: type[ObjectStoreChannel]) -> ObjectStoreChannel:
        return kind(
            engines=[self.engine],
            publisher=self.publisher,
            publisher_name=self.publisher_name,
            is_sender=True,
            bucket_bytes=2**18,  # about ten buckets
            pause="keep",
            timeout_s=120,
            start_timeout_s=START_LIMIT_S,
        )

    def weights(self) -> list[tuple[str, torch.Tensor]]:
        names = saved_names(self.model)
        return [(names[name], tensor) for name, tensor in iter_parameters(self.model)]

    def perturb(self) -> None:
        """Random noise of the size of the weights on every one, those of the vision tower too."""
        with torch.no_grad():
            for parameter in self.model.parameters():
                noise = torch.randn(parameter.shape, generator=self.noise) * 0.02
                parameter.add_(noise.to(parameter.dtype))

    def send(self, weights: Weights | None = None) -> SyncStats:
        """Broadcast as the next version."""
        self.version += 1
        stats = self.channel.send(self.version, self.weights() if weights is None else weights)
        assert stats is not None
        return stats

    def pool(self, **options: Any) -> EnginePool:
        settings = {"request_timeout_s": 120, "max_restarts": 2, **options}
        return EnginePool([self.engine], forbidden_ids=(), max_num_seqs=64, **settings)

    def sample(
        self,
        prompts: Sequence[Prompt] | None = None,
        pool: EnginePool | None = None,
        *,
        num_generations: int = 3,
        max_new_tokens: int = 12,
    ) -> list[tuple[Response, ...]]:
        plan = SamplingPlan(
            num_generations=num_generations,
            max_new_tokens=max_new_tokens,
            temperature=1.0,
            top_p=1.0,
            seed=5,
        )
        chosen = self.prompts if prompts is None else prompts
        return (pool or self.pool()).generate(chosen, plan, version=self.version)

    def difference(
        self, sampled: Sequence[tuple[Response, ...]], prompts: Sequence[Prompt] | None = None
    ) -> float:
        """Largest difference of any token's log-probability, engine against transformers."""
        worst = 0.0
        for prompt, responses in zip(prompts or self.prompts, sampled, strict=True):
            for response in responses:
                mine = self.logprobs(prompt, response.completion_ids)
                worst = max(worst, float(np.abs(mine - response.sampler_logprobs).max()))
        return worst

    def logprobs(self, prompt: Prompt, completion: np.ndarray) -> np.ndarray:
        """[T] log-probabilities of a completion by a plain forward pass, without any cache."""
        view = self.encoder.encode(prompt)
        tokens = torch.tensor(completion)
        ids = torch.cat([view.input_ids, tokens])[None]
        types = torch.cat([view.mm_token_type_ids, torch.zeros_like(tokens)])[None]
        with torch.no_grad():
            logits = self.model(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                mm_token_type_ids=types,
                pixel_values=view.pixel_values.to(self.model.dtype),
                image_grid_thw=view.image_grid_thw,
                use_cache=False,
            ).logits.float()
        logp = torch.log_softmax(logits[0, -len(tokens) - 1 : -1], dim=-1)
        return logp.gather(1, tokens[:, None])[:, 0].numpy()

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = ray.get(self.engine.status.remote(), timeout=120)
        return found

    def processes(self) -> tuple[int, list[psutil.Process]]:
        """Process id of the actor, and vLLM's processes below it."""
        pid = self.status()["pid"]
        return pid, psutil.Process(pid).children(recursive=True)


def prompts_of(folder: Path, file: Path) -> list[Prompt]:
    renderer = PromptRenderer.from_pretrained(str(folder), max_prompt_tokens=64)
    return load_prompts(file, renderer, 3)


def engine_settings(folder: Path, **changes: Any) -> EngineSettings:
    """Of a small engine on CPU, but for the changes."""
    context = ray.get_runtime_context()
    return EngineSettings(
        model_path=str(folder),
        **{
            "dtype": "float32",
            "device": "cpu",
            "seed": 0,
            "max_model_len": 128,
            "max_num_seqs": 16,
            "max_images": 1,
            "min_pixels": None,
            "max_pixels": None,
            "tensor_parallel_size": 1,
            "kv_cache_gib": 0.25,
            "gpu_memory_utilization": 0.2,
            "enforce_eager": True,
            "scaled_logprobs": False,
            "transport": "object_store",
            "ray_address": context.gcs_address,
            "ray_namespace": context.namespace,
            **changes,
        },
    )


@contextlib.contextmanager
def engine_of(folder: Path, dtype: str) -> Iterator[tuple[Any, Any, str]]:
    """An engine and a publisher of a test's own."""
    settings = engine_settings(folder, dtype=dtype)
    name = f"publisher-{folder}"
    engine = ray.remote(VllmEngine).options(num_cpus=0.5).remote(0, settings)
    publisher = ray.remote(WeightPublisher).options(name=name, num_cpus=0).remote()
    try:
        ray.get(engine.status.remote(), timeout=START_LIMIT_S)
        yield engine, publisher, name
    finally:
        ray.kill(engine)
        ray.kill(publisher)
