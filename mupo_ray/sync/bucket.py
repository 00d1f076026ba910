"""Weights as buckets of bytes: layout, checksums, and the way back to tensors.

A bucket is a list of flat uint8 arrays, one a tensor: views of the sender's memory, so that Ray's
object store makes the only copy. bfloat16 has no numpy type, hence bytes.
"""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorLayout:
    """One tensor of a bucket."""

    name: str
    dtype: str
    """Name of the torch dtype, `bfloat16` say."""
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """All that an engine needs to fetch and verify one version of the weights."""

    publisher: str
    """Name of the actor that hands out references to the buckets."""
    ray_address: str
    ray_namespace: str
    version: int
    buckets: tuple[tuple[TensorLayout, ...], ...]
    digest: str
    timeout_s: float

    @property
    def num_tensors(self) -> int:
        """Tensors in all buckets."""
        return sum(len(layout) for layout in self.buckets)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as vLLM's RPC carries them."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Manifest:
        """Inverse of `to_dict`."""
        buckets = tuple(
            tuple(
                TensorLayout(name=t["name"], dtype=t["dtype"], shape=tuple(t["shape"]))
                for t in layout
            )
            for layout in values["buckets"]
        )
        return cls(**{**values, "buckets": buckets})


def bucketize(
    tensors: Iterable[tuple[str, torch.Tensor]], bucket_bytes: int
) -> Iterator[tuple[tuple[TensorLayout, ...], list[np.ndarray]]]:
    """Group named tensors into buckets, in their order.

    Args:
        tensors: (name, tensor) pairs; tensors are moved to the host.
        bucket_bytes: a bucket closes once it holds at least this much.

    Yields:
        (layout, arrays) of one bucket; the arrays are flat uint8 views.
    """
    import torch  # Not above: the actors that hand out references need none of its 190 MiB.

    layout: list[TensorLayout] = []
    arrays: list[np.ndarray] = []
    size = 0
    for name, tensor in tensors:
        host = tensor.detach().to("cpu").contiguous()
        layout.append(
            TensorLayout(
                name=name, dtype=str(host.dtype).removeprefix("torch."), shape=tuple(host.shape)
            )
        )
        arrays.append(host.view(-1).view(torch.uint8).numpy())
        size += arrays[-1].nbytes
        if size >= bucket_bytes:
            yield tuple(layout), arrays
            layout, arrays, size = [], [], 0
    if layout:
        yield tuple(layout), arrays


def tensors_of(
    layout: Sequence[TensorLayout], arrays: Sequence[np.ndarray]
) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a bucket; they share the bucket's (read-only) memory."""
    import torch

    for entry, array in zip(layout, arrays, strict=True):
        with warnings.catch_warnings():
            # The store's memory is read-only; loading copies out of it and never writes.
            warnings.filterwarnings("ignore", message="The given (buffer|NumPy array) is not writ")
            flat = torch.frombuffer(array.data, dtype=getattr(torch, entry.dtype))
        yield entry.name, flat.view(entry.shape)


class Digest:
    """Running checksum over the layout and bytes of buckets (xxh3, 64 bit)."""

    def __init__(self) -> None:
        self._hash = xxhash.xxh3_64()

    def add(self, layout: Sequence[TensorLayout], arrays: Sequence[np.ndarray]) -> None:
        """Take in one bucket."""
        for entry, array in zip(layout, arrays, strict=True):
            self._hash.update(f"{entry.name}|{entry.dtype}|{entry.shape}".encode())
            self._hash.update(array.data)

    def hex(self) -> str:
        """16 hexadecimal digits."""
        return self._hash.hexdigest()


def digest_of(manifest: Manifest, buckets: Sequence[Sequence[np.ndarray]]) -> str:
    """Checksum of received buckets, under the layout that the manifest declares."""
    digest = Digest()
    for layout, arrays in zip(manifest.buckets, buckets, strict=True):
        digest.add(layout, arrays)
    return digest.hex()
