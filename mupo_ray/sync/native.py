"""Weights by vLLM's own transports: NCCL to GPUs of their own, CUDA IPC on the trainer's GPU.

vLLM's trainer engines drive the transfer; this adds what surrounds it: pause, version, caches, and
the same outcome as the object store's. Follows vLLM 0.29. It has not been run on a GPU;
`tests/gpu` does that where there is one.
"""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, Any

import ray

from mupo_ray.errors import WeightSyncError
from mupo_ray.sync.broadcast import SyncStats, gather, wait_all

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import torch


class NativeChannel:
    """One of vLLM's transports over all engines; see `WeightChannel`."""

    def __init__(
        self,
        transport: str,
        *,
        engines: Sequence[Any],
        is_sender: bool,
        rank: int,
        pause: str,
        timeout_s: float,
    ) -> None:
        """Remember who takes part; the rendezvous happens with the first `send`.

        Args:
            transport: `nccl` or `ipc`.
            engines: actor handles in pool order.
            is_sender: True on trainer rank 0.
            rank: of this trainer.
            pause: what becomes of requests in flight: `abort`, `wait` or `keep`.
            timeout_s: limit of each stage.
        """
        self._transport = transport
        self._engines = list(engines)
        self._is_sender = is_sender
        self._rank = rank
        self._pause = pause
        self._timeout_s = timeout_s
        self._trainer: Any = None
        self._source = _ReplayedSource()

    def send(self, version: int, weights: Iterable[tuple[str, torch.Tensor]]) -> SyncStats | None:
        """See `WeightChannel.send`; an engine that fails ends the round: all share one group."""
        began = time.monotonic()
        self._source.fill(weights)
        if self._trainer is None:
            self._trainer = self._rendezvous()
        if self._is_sender:
            self._all("begin_update", self._pause, what="engines to pause")
        try:
            self._trainer.send_weights()
        except Exception as err:
            raise WeightSyncError(
                f"{self._transport} transfer of version {version} failed: {err}"
            ) from err
        num_bytes = self._source.num_bytes
        self._source.clear()
        if not self._is_sender:
            return None
        sent_at = time.monotonic()
        self._all("end_update", version, what=f"engines to confirm version {version}")
        return SyncStats(
            policy_version=version,
            engines=tuple(range(len(self._engines))),
            num_bytes=num_bytes,
            publish_s=sent_at - began,
            commit_s=time.monotonic() - sent_at,
        )

    def _rendezvous(self) -> Any:
        from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
        from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

        client = _EngineClient(self._engines, self._timeout_s)
        info: Any
        if self._transport == "ipc":
            info = IPCTrainerInitInfo(rank=self._rank, packed=True)
        else:
            devices = client.devices() if self._is_sender else [0]
            info = NCCLTrainerInitInfo(
                rank=self._rank,
                master_address=ray.util.get_node_ip_address(),
                master_port=_free_port(),
                world_size=1 + sum(devices),
            )
        return WeightTransferTrainerFactory.trainer_init(info, client=client, source=self._source)

    def _all(self, method: str, *args: Any, what: str) -> None:
        refs = {i: getattr(e, method).remote(*args) for i, e in enumerate(self._engines)}
        wait_all(refs, self._timeout_s, what)


class _ReplayedSource:
    """vLLM's `WeightSource` over weights that are gathered anew each round.

    Names, dtypes and shapes must be known before the first tensor is sent, so a round is gathered
    whole on the device. ZeRO-3 models beyond one device's memory need the split by layers that
    vLLM's sharded transport makes.
    """

    def __init__(self) -> None:
        self._tensors: list[tuple[str, torch.Tensor]] = []

    def fill(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        self._tensors = [(name, tensor.detach().clone()) for name, tensor in weights]

    def clear(self) -> None:
        self._tensors = []

    @property
    def num_bytes(self) -> int:
        return sum(t.numel() * t.element_size() for _, t in self._tensors)

    def metadata(self) -> list[Any]:
        from vllm.distributed.weight_transfer.base import ParamMeta

        return [ParamMeta(name, t.dtype, tuple(t.shape)) for name, t in self._tensors]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(self._tensors)

    def held_names(self) -> None:
        return None


class _EngineClient:
    """vLLM's four control calls, sent to every engine with a time limit.

    vLLM's own Ray client gives all engines the same NCCL rank offset, which fits one engine only.
    """

    def __init__(self, engines: Sequence[Any], timeout_s: float) -> None:
        self._engines = list(engines)
        self._timeout_s = timeout_s

    def devices(self) -> list[int]:
        """Devices of each engine."""
        refs = {i: e.num_devices.remote() for i, e in enumerate(self._engines)}
        return wait_all(refs, self._timeout_s, "engines to count their devices")

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        offset = init_info.get("rank_offset")
        infos = []
        for count in self.devices():
            infos.append(
                dict(init_info) if offset is None else {**init_info, "rank_offset": offset}
            )
            offset = None if offset is None else offset + count
        self._call(
            "init_weight_transfer_engine",
            [WeightTransferInitRequest(init_info=info) for info in infos],
        )

    def start_weight_update(self) -> None:
        self._call("start_weight_update")

    def update_weights(self, update_info: Any) -> None:
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        request = WeightTransferUpdateRequest(update_info=update_info)
        self._call("update_weights", [request] * len(self._engines))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._call("finish_weight_update")

    def _call(self, method: str, args: Sequence[Any] | None = None) -> None:
        refs = {
            i: getattr(e, method).remote(*(() if args is None else (args[i],)))
            for i, e in enumerate(self._engines)
        }
        _, failed = gather(refs, self._timeout_s)
        if failed:
            raise WeightSyncError(
                f"{method}: " + "; ".join(f"engine {i}: {why}" for i, why in failed.items())
            )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
