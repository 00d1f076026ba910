"""What a served model is started with: the typed arguments of `build_app`.

A Serve config file gives them under `args`. An unknown key or a wrong value is refused before
anything starts.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from mupo_ray.settings.sections import EmbedderConfig, Section


class EngineOptions(Section):
    """How vLLM runs; the same meanings as in a run's `rollout` and `data` sections."""

    device: Literal["cpu", "cuda"] = "cpu"
    """What the engine computes on."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Type of weights and computation."""
    seed: NonNegativeInt = 0
    """Seeds requests that bring no seed."""
    max_model_len: PositiveInt = 4096
    """Most tokens of a prompt and its response together."""
    max_num_seqs: PositiveInt = 64
    """Responses sampled at a time."""
    kv_cache_gib: PositiveFloat = 1.0
    """Size of the key-value cache on CPU."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Share of a GPU's memory that the engine takes."""
    tensor_parallel_size: PositiveInt = 1
    """GPUs of one engine."""
    enforce_eager: bool = False
    """No CUDA graphs."""
    min_pixels: PositiveInt | None = None
    """Smaller pictures are scaled up to it; as the run had it, or the processor's own limit, where
    None."""
    max_pixels: PositiveInt | None = None
    """Larger pictures are scaled down to it; likewise."""
    cpus: PositiveFloat = 1.0
    """CPUs that a replica reserves."""


class Autoscaling(Section):
    """Replicas by load."""

    min_replicas: PositiveInt = 1
    """Fewest replicas."""
    max_replicas: PositiveInt = 1
    """Most replicas."""
    target_ongoing_requests: PositiveFloat = 32.0
    """Requests in progress that one replica should have."""

    @model_validator(mode="after")
    def bounds_are_ordered(self) -> Self:
        """The fewest are not more than the most."""
        if self.min_replicas > self.max_replicas:
            raise ValueError(
                f"min_replicas = {self.min_replicas} exceeds max_replicas = {self.max_replicas}; "
                "should be at most that"
            )
        return self


class Limits(Section):
    """What one request may ask for; more is refused with 400 (bodies: 413, load: 429)."""

    max_body_bytes: PositiveInt = 32 * 2**20
    """Largest request body."""
    max_n: PositiveInt = 32
    """Most responses of a request: `n` times the number of prompts."""
    max_new_tokens: PositiveInt | None = None
    """Most tokens of a response; the model's length alone limits it where None."""
    max_messages: PositiveInt = 128
    """Most messages of a chat."""
    max_images: PositiveInt = 8
    """Most pictures of a request."""
    max_image_bytes: PositiveInt = 16 * 2**20
    """Largest encoded picture."""
    max_image_pixels: PositiveInt = 2**24
    """Largest picture that is decoded, width times height."""
    max_concurrent: PositiveInt = 256
    """Requests in progress on one replica."""
    timeout_s: PositiveFloat = 600.0
    """Longest time for one request."""


class ImageUrls(Section):
    """Pictures named by address, which the server fetches."""

    timeout_s: PositiveFloat = 10.0
    """Longest time for one picture, redirects included."""
    max_redirects: NonNegativeInt = 3
    """Redirects that are followed; each target is checked like the first address."""


class Policy(Section):
    """Which weights are served: Serve's `user_config`, changed while the model is served."""

    model: str
    """A run (its newest whole checkpoint), a checkpoint of one, or a Hugging Face folder; absolute,
    or below `storage_path`."""
    policy_version: NonNegativeInt | None = None
    """Version that responses carry; the checkpoint's finished steps, or 0, where None."""


class ServingArgs(Section):
    """All arguments of `mupo_ray.serving.app:build_app`."""

    model: str
    """Weights at the start: a run, a checkpoint, a Hugging Face folder or id."""
    policy_version: NonNegativeInt | None = None
    """Version that responses carry; the checkpoint's finished steps, or 0, where None."""
    storage_path: str = "runs"
    """Folder in which runs given by name are looked for."""
    name: str = "mupo"
    """Name of the model in the API."""
    replicas: PositiveInt = 1
    """Engines, each with a copy of the model."""
    autoscaling: Autoscaling | None = None
    """Number of replicas by load, in place of `replicas`."""
    engine: EngineOptions = EngineOptions()
    limits: Limits = Limits()
    image_urls: ImageUrls | None = None
    """Fetch pictures by http and https from public addresses; refused where None."""
    api_key_env: str | None = None
    """Environment variable with the key that requests must bring; none is asked for where None."""
    cors_origins: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Origins whose pages may call the API from a browser."""
    embedder: EmbedderConfig | None = None
    """How `/v1/strategies` embeds reasoning; as the run did, or the default, where None."""
    template: str | None = None
    """Frame of a question in `/v1/strategies` (`plain`, `math`, `paper`, `r1v` or a file); as the
    run had it, or `plain`, where None."""
    system_prompt: str | None = None
    """System message of a question in `/v1/strategies` that brings none; likewise."""
    scorer: str | None = None
    """`module:function` that scores answers for best-of-n: (question, texts) -> a number each."""

    @model_validator(mode="after")
    def replicas_are_said_once(self) -> Self:
        """A fixed number or a range, not both."""
        if self.autoscaling is not None and "replicas" in self.model_fields_set:
            raise ValueError(
                f"replicas = {self.replicas} has no effect with autoscaling; should be left out"
            )
        return self
