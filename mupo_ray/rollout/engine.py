"""One vLLM engine: samples cohorts and takes new weights while it runs.

`VllmEngine` is a plain class; the pool turns it into a Ray actor. All that is particular to vLLM on
the sampling side lives here (vLLM 0.29); the receiving end of the weights is `sync/receiver.py`.

    generate(request) ----> AsyncLLM ----> N responses, tagged with the policy version
    stage(manifest)         maps the published buckets and verifies them; sampling goes on
    commit(version)         pause -> load -> clear prefix, multimodal, encoder caches -> resume
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mupo_ray.errors import RolloutError, StaleEngineError, WeightSyncError
from mupo_ray.rollout.decoding import continuations
from mupo_ray.types import FinishReason, Response, RgbImage

if TYPE_CHECKING:
    from collections.abc import Mapping

logger = logging.getLogger(__name__)

# Added to the logits of tokens that must not be sampled; exp(-100) is zero in float32.
_FORBID_BIAS = -100.0
_WATCH_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """What an engine is started with."""

    model_path: str
    dtype: str
    device: str
    seed: int
    max_model_len: int
    max_num_seqs: int
    max_images: int
    """Most images in one prompt."""
    min_pixels: int | None
    """Pixel limits of the image processor; its own where None."""
    max_pixels: int | None
    tensor_parallel_size: int
    kv_cache_gib: float
    gpu_memory_utilization: float
    enforce_eager: bool
    scaled_logprobs: bool
    """Report log-probabilities after temperature (needed where it is not 1)."""
    transport: str
    """Weight transport: `object_store`, `nccl` or `ipc`."""
    ray_address: str
    """GCS address at which the engine's worker fetches weights from the object store."""
    ray_namespace: str
    keeps_stats: bool = False
    """Count what happens, for `/metrics`; costs a little a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRequest:
    """N responses to one prompt."""

    request_id: str
    token_ids: tuple[int, ...]
    """Prompt tokens with one placeholder an image."""
    images: tuple[RgbImage, ...]
    image_keys: tuple[str, ...]
    num_generations: int
    max_new_tokens: int
    temperature: float
    """0 is greedy."""
    top_p: float
    seed: int
    expected_version: int
    forbidden_ids: tuple[int, ...]
    """Tokens that are never sampled (vision placeholders)."""
    with_logprobs: bool = True
    """Whether responses bring the log-probabilities of their tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReport:
    """What an engine says after it took weights."""

    engine: int
    policy_version: int
    digest: str
    """Checksum over layout and bytes of the weights loaded."""
    num_tensors: int
    load_s: float


class VllmEngine:
    """An `AsyncLLM` with weight updates; every method is safe to call while others run."""

    def __init__(self, index: int, settings: EngineSettings) -> None:
        """Start the engine; takes 5 to 40 s on CPU.

        Args:
            index: place in the pool.
            settings: model, limits and transport.
        """
        self._index = index
        self._settings = settings
        _set_environment(settings)
        from vllm import AsyncEngineArgs
        from vllm.config.weight_transfer import WeightTransferConfig
        from vllm.v1.engine.async_llm import AsyncLLM

        import mupo_ray.sync.receiver  # noqa: F401  (registers the object-store transport)

        args = AsyncEngineArgs(
            model=settings.model_path,
            dtype=settings.dtype,
            seed=settings.seed,
            max_model_len=settings.max_model_len,
            max_num_seqs=settings.max_num_seqs,
            tensor_parallel_size=settings.tensor_parallel_size,
            **_device_args(settings),
            enforce_eager=settings.enforce_eager or settings.device == "cpu",
            mm_processor_kwargs=_pixel_limits(settings),
            limit_mm_per_prompt={"image": settings.max_images, "video": 0},
            enable_prefix_caching=True,
            logprobs_mode="processed_logprobs" if settings.scaled_logprobs else "raw_logprobs",
            worker_extension_cls="mupo_ray.sync.receiver.ReceiverExtension",
            weight_transfer_config=WeightTransferConfig(backend=settings.transport),
            generation_config="vllm",
            use_tqdm_on_load=False,
            disable_log_stats=not settings.keeps_stats,
        )
        self._llm: Any = AsyncLLM.from_engine_args(args)
        self._is_closed = threading.Event()
        threading.Thread(
            target=_end_with_core, args=(self._llm, self._is_closed), daemon=True
        ).start()
        self._version = -1
        self._has_received = False
        self._fence: str | None = "no weights received yet"
        self._num_active = 0

    # -- sampling ------------------------------------------------------------------------------

    async def generate(self, request: SampleRequest) -> list[Response]:
        """Sample N responses to one prompt; the prompt is prefilled once.

        Raises:
            StaleEngineError: the engine holds another policy version than expected.
            RolloutError: vLLM refused the request.
        """
        self._check_version(request)
        start_version = self._version
        self._num_active += 1
        try:
            completions = await self._sample(request)
        finally:
            self._num_active -= 1
        texts = continuations(
            self._llm.get_tokenizer(), request.token_ids, [c.token_ids for c in completions]
        )
        return [
            self._response(request, start_version, completion, text)
            for completion, text in zip(completions, texts, strict=True)
        ]

    async def _sample(self, request: SampleRequest) -> list[Any]:
        """The completions, in order."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            n=request.num_generations,
            max_tokens=request.max_new_tokens,
            temperature=request.temperature,
            top_p=request.top_p,
            seed=request.seed,
            logprobs=0 if request.with_logprobs else None,
            logit_bias={token: _FORBID_BIAS for token in request.forbidden_ids} or None,
            detokenize=False,
            # With more than one completion the other kinds drop some of them silently.
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        prompt: dict[str, Any] = {"prompt_token_ids": list(request.token_ids)}
        if request.images:
            prompt["multi_modal_data"] = {"image": [image.pil() for image in request.images]}
            prompt["multi_modal_uuids"] = {"image": list(request.image_keys)}
        final: Any = None
        try:
            async for output in self._llm.generate(prompt, params, request.request_id):
                final = output
        except ValueError as err:
            raise RolloutError(f"vLLM refused prompt {request.request_id}: {err}") from err
        if final is None or len(final.outputs) != request.num_generations:
            count = 0 if final is None else len(final.outputs)
            raise RolloutError(
                f"prompt {request.request_id}: {count} responses came back, "
                f"{request.num_generations} were asked for"
            )
        return sorted(final.outputs, key=lambda c: c.index)

    def _response(
        self, request: SampleRequest, version: int, completion: Any, text: str
    ) -> Response:
        ids = np.asarray(completion.token_ids, dtype=np.int64)
        logprobs = np.asarray(
            [
                step[token].logprob
                for step, token in zip(completion.logprobs, completion.token_ids, strict=True)
            ]
            if request.with_logprobs
            else [],
            dtype=np.float32,
        )
        return Response(
            text=text,
            completion_ids=ids,
            sampler_logprobs=logprobs,
            finish_reason=FinishReason(completion.finish_reason),
            policy_version=version,
            seed=request.seed + completion.index,
            engine=self._index,
        )

    def _check_version(self, request: SampleRequest) -> None:
        if self._fence is not None:
            raise StaleEngineError(
                f"engine {self._index} takes no requests: {self._fence}; "
                f"version {request.expected_version} was expected"
            )
        if self._version != request.expected_version:
            raise StaleEngineError(
                f"engine {self._index} holds policy version {self._version}, "
                f"version {request.expected_version} was expected"
            )

    async def abort(self, request_ids: list[str]) -> None:
        """Stop work on requests that nobody waits for any more."""
        await self._llm.abort(request_ids)

    # -- weights -------------------------------------------------------------------------------

    async def stage(self, manifest: Mapping[str, Any]) -> str:
        """Map the buckets of a published version and verify their checksums; sampling goes on.

        Args:
            manifest: what `sync.broadcast` published: publisher actor, version, layout, sums.

        Returns:
            Digest of layout and bytes, as found here.

        Raises:
            WeightSyncError: a bucket is missing or its checksum is wrong.
        """
        digests = await self._llm.collective_rpc("stage_weights", args=(dict(manifest),))
        if len(set(digests)) != 1:
            raise WeightSyncError(f"engine {self._index}: its workers disagree: {digests}")
        return str(digests[0])

    async def commit(self, version: int, digest: str, pause: str) -> SyncReport:
        """Load the staged weights and go on sampling with them.

        An engine whose load failed stays fenced until a later commit succeeds.

        Args:
            version: policy version of the staged weights.
            digest: digest that staging reported.
            pause: what becomes of requests in flight: `abort`, `wait` or `keep`.

        Raises:
            WeightSyncError: the load failed or was not complete.
        """
        await self.begin_update(pause)
        began = time.monotonic()
        try:
            from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

            await self._llm.start_weight_update()
            await self._llm.update_weights(
                WeightTransferUpdateRequest(update_info={"version": version, "digest": digest})
            )
            await self._llm.finish_weight_update()
            load_s = time.monotonic() - began
            counts = await self._llm.collective_rpc("num_loaded_tensors")
            await self.end_update(version)
        except BaseException as err:
            # Paused, requests in flight would wait for ever; the fence keeps new ones out.
            await self._llm.resume_generation()
            if isinstance(err, Exception):
                raise WeightSyncError(
                    f"engine {self._index} failed to load version {version}: {err}"
                ) from err
            raise
        return SyncReport(
            engine=self._index,
            policy_version=version,
            digest=digest,
            num_tensors=int(counts[0]),
            load_s=load_s,
        )

    async def begin_update(self, pause: str) -> None:
        """Fence the engine and pause sampling."""
        self._has_received = True
        self._fence = "weights are being swapped"
        await self._llm.pause_generation(mode=pause, clear_cache=True)

    async def end_update(self, version: int) -> None:
        """Clear all caches that the old weights filled, go on sampling as `version`."""
        await self.reset_caches()
        await self._llm.resume_generation()
        self._version = version
        self._fence = None

    async def reset_caches(self) -> None:
        """Clear prefix, multimodal and encoder caches: each holds values of the old weights."""
        await self._llm.reset_prefix_cache()
        await self._llm.reset_mm_cache()
        await self._llm.reset_encoder_cache()

    async def serve_loaded(self, version: int) -> None:
        """Sample with the weights that the engine was started with, as `version`.

        Raises:
            WeightSyncError: it has received others since.
        """
        if self._has_received:
            raise WeightSyncError(
                f"engine {self._index} holds weights of version {self._version}, not those it was "
                "started with"
            )
        self._version = version
        self._fence = None

    async def init_weight_transfer_engine(self, request: Any) -> None:
        """Rendezvous of vLLM's own transports (`nccl`, `ipc`)."""
        await self._llm.init_weight_transfer_engine(request)

    async def start_weight_update(self) -> None:
        """First call of vLLM's own transports in a round."""
        await self._llm.start_weight_update()

    async def update_weights(self, request: Any) -> None:
        """Receive weights by vLLM's own transports."""
        await self._llm.update_weights(request)

    async def finish_weight_update(self) -> None:
        """Last call of vLLM's own transports in a round."""
        await self._llm.finish_weight_update()

    async def num_devices(self) -> int:
        """Workers of this engine, each one device."""
        return len(await self._llm.collective_rpc("num_loaded_tensors"))

    # -- state ---------------------------------------------------------------------------------

    async def status(self) -> dict[str, Any]:
        """Index, policy version, fence and requests in progress."""
        return {
            "engine": self._index,
            "policy_version": self._version,
            "fence": self._fence,
            "active": self._num_active,
            "pid": os.getpid(),
        }

    async def shutdown(self) -> None:
        """End the engine's processes; it cannot be used afterwards."""
        self._is_closed.set()
        self._llm.shutdown()
        await asyncio.sleep(0)


def _end_with_core(llm: Any, is_closed: threading.Event) -> None:
    """End this process once vLLM's core process is dead, so that Ray starts both again.

    vLLM fails the requests that come after such a death; those in flight would wait for ever.
    """
    while not llm.errored:
        if is_closed.wait(_WATCH_S):
            return
    os._exit(1)


def _set_environment(settings: EngineSettings) -> None:
    """Set what vLLM reads at import and in its subprocesses."""
    # Its warnings at every start (eager mode, no Triton) tell a user of this package nothing.
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ["VLLM_NO_USAGE_STATS"] = "1"
    if settings.device == "cpu":
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")


def _device_args(settings: EngineSettings) -> dict[str, Any]:
    if settings.device == "cpu":
        from vllm.v1.executor.uniproc_executor import UniProcExecutor

        return {
            # On CPU vLLM gives even a single worker a process of its own, to bind its threads, and
            # its core spins while it waits: of two cores, that takes one. The class, since the
            # name "uni" is overridden.
            "distributed_executor_backend": (
                UniProcExecutor if settings.tensor_parallel_size == 1 else "mp"
            ),
            "kv_cache_memory_bytes": int(settings.kv_cache_gib * 2**30),
            # A seeded request in a partial prefill rewinds its generator, which CPU ones cannot.
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(8192, settings.max_model_len),
        }
    return {"gpu_memory_utilization": settings.gpu_memory_utilization}


def _pixel_limits(settings: EngineSettings) -> dict[str, int] | None:
    limits = {"min_pixels": settings.min_pixels, "max_pixels": settings.max_pixels}
    return {name: value for name, value in limits.items() if value is not None} or None
