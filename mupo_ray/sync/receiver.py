"""The receiving end of a broadcast, inside vLLM's worker processes (vLLM 0.29).

vLLM has weight-transfer engines for GPUs (`nccl`, `ipc`); this adds `object_store`, which maps
buckets from Ray's object store. A vLLM worker is no Ray worker, so it joins the cluster once by
the address it is given. Importing this module registers the transport; vLLM imports it in every
worker through `worker_extension_cls`.
"""

from __future__ import annotations

import ctypes
import logging
import signal
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

from mupo_ray.errors import WeightSyncError
from mupo_ray.sync.bucket import Manifest, digest_of, tensors_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_PR_SET_PDEATHSIG = 1


@dataclass
class ObjectStoreInitInfo(WeightTransferInitInfo):
    """No rendezvous is needed: the manifest carries all."""


@dataclass
class ObjectStoreUpdateInfo(WeightTransferUpdateInfo):
    """Names the staged version to load."""

    version: int
    digest: str


class ObjectStoreTransferEngine(WeightTransferEngine[ObjectStoreInitInfo, ObjectStoreUpdateInfo]):
    """Loads weights that `ReceiverExtension.stage_weights` mapped beforehand."""

    init_info_cls = ObjectStoreInitInfo
    update_info_cls = ObjectStoreUpdateInfo

    staged: tuple[int, str, Manifest, list[Any]] | None = None
    """Version, digest, manifest and mapped buckets."""
    num_loaded: int = 0
    """Tensors of the last complete load."""

    def init_transfer_engine(self, init_info: ObjectStoreInitInfo) -> None:
        """Nothing to do."""

    def start_weight_update(self) -> None:
        """Prepare the model for checkpoint-format weights."""
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Load the staged weights; a failed load leaves the model ready for another try."""
        info = self.parse_update_info(update_info)
        try:
            self.receive_weights(info)
        except BaseException:
            # Without this the half-loaded layers could never be loaded again.
            self.finish_weight_update()
            raise

    def receive_weights(self, update_info: ObjectStoreUpdateInfo) -> None:
        """Feed the staged buckets to the model's own loader."""
        if self.staged is None or self.staged[:2] != (update_info.version, update_info.digest):
            version = None if self.staged is None else self.staged[0]
            raise WeightSyncError(
                f"version {update_info.version} was to be loaded but version {version} is staged"
            )
        _, _, manifest, buckets = self.staged
        self.model.load_weights(self._staged_tensors(manifest, buckets))
        lacking = _incomplete_layers(self.model, self.model_config)
        if lacking:
            raise WeightSyncError(
                f"version {update_info.version} lacks weights of {len(lacking)} layers "
                f"({', '.join(lacking[:4])}); every weight of the model should be sent"
            )
        self.num_loaded = manifest.num_tensors
        self.staged = None

    def _staged_tensors(
        self, manifest: Manifest, buckets: list[Any]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        for layout, bucket in zip(manifest.buckets, buckets, strict=True):
            yield from tensors_of(layout, bucket)

    def finish_weight_update(self) -> None:
        """Finalise the layers, then pack heads again that share the embedding's weights."""
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)
        if self.device.type == "cpu":
            _repack_heads(self.model)

    def shutdown(self) -> None:
        """Drop mapped buckets."""
        self.staged = None


class ReceiverExtension:
    """Methods that vLLM mixes into its worker class; called by `collective_rpc`."""

    weight_transfer_engine: Any
    vllm_config: Any

    def stage_weights(self, manifest: dict[str, Any]) -> str:
        """Map a published version and verify it; see `VllmEngine.stage`."""
        import ray

        found = Manifest.from_dict(manifest)
        _join_cluster(found.ray_address, found.ray_namespace)
        publisher = ray.get_actor(found.publisher, namespace=found.ray_namespace)
        refs = ray.get(publisher.buckets.remote(found.version), timeout=found.timeout_s)
        buckets = ray.get(refs, timeout=found.timeout_s)
        digest = digest_of(found, buckets)
        if digest != found.digest:
            raise WeightSyncError(
                f"checksum of version {found.version} is {digest} here, {found.digest} at the "
                "sender; nothing was loaded"
            )
        self.weight_transfer_engine.staged = (found.version, digest, found, buckets)
        return digest

    def num_loaded_tensors(self) -> int:
        """Tensors of the last complete load."""
        return int(getattr(self.weight_transfer_engine, "num_loaded", 0))


def _join_cluster(address: str, namespace: str) -> None:
    import ray

    if ray.is_initialized():
        return
    # vLLM ends this process by SIGTERM, for which Ray would put a handler that reports a crash.
    handler = signal.getsignal(signal.SIGTERM)
    ray.init(address=address, namespace=namespace, log_to_driver=False, logging_level="ERROR")
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_DFL if handler is None else handler)


def _incomplete_layers(model: torch.nn.Module, model_config: Any) -> list[str]:
    """Layers that got not all of their parameters; asked before they are finalised (vLLM 0.29).

    A layer that got all of them counts as done for the reload. A vocabulary is padded, so there any
    part will do; a tied head gets nothing.
    """
    from vllm.model_executor.layers.attention import is_deferred_attention_layer
    from vllm.model_executor.layers.vocab_parallel_embedding import (
        ParallelLMHead,
        VocabParallelEmbedding,
    )
    from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

    is_tied = bool(getattr(model_config.hf_text_config, "tie_word_embeddings", False))
    lacking = []
    for name, layer in model.named_modules():
        progress = get_layerwise_info(layer)
        if not progress.can_load() or is_deferred_attention_layer(layer):
            continue
        if is_tied and isinstance(layer, ParallelLMHead):
            continue
        size = sum(p.numel() for p in layer.parameters(recurse=False))
        least = min(size, 1) if isinstance(layer, VocabParallelEmbedding) else size
        if progress.load_numel < least:
            lacking.append(name)
    return lacking


def _repack_heads(model: torch.nn.Module) -> None:
    """Pack every output head again: tied ones keep the old embedding otherwise (CPU)."""
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    for module in model.modules():
        if isinstance(module, ParallelLMHead):
            module.quant_method.process_weights_after_loading(module)


def _die_with_parent() -> None:
    """Ask the kernel to end this worker when the engine actor that started it is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


# It warns of every layer that holds no weight of its own (rotary embeddings, tied heads), at every
# load; whether one was whole is checked by count and checksum.
logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel(logging.ERROR)

# This runs at import, which vLLM does in every worker before it makes its transfer engine.
if "object_store" not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine("object_store", ObjectStoreTransferEngine)

_die_with_parent()
