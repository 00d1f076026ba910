"""Buckets of weights: layout, checksum and the way back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import xxhash

from mupo_ray.sync.bucket import (
    Digest,
    Manifest,
    TensorLayout,
    bucketize,
    digest_of,
    tensors_of,
)

TENSORS = [
    ("a", torch.arange(6, dtype=torch.float32).reshape(2, 3)),
    ("b", torch.tensor([1.5, -2.0, 3e38, float("nan")], dtype=torch.bfloat16)),
    ("c", torch.tensor(7, dtype=torch.int64)),
    ("d", torch.arange(6, dtype=torch.float16).reshape(2, 3).T),
]


def manifest(buckets: tuple[tuple[TensorLayout, ...], ...]) -> Manifest:
    return Manifest(
        publisher="p",
        ray_address="host:1",
        ray_namespace="n",
        version=3,
        buckets=buckets,
        digest="",
        timeout_s=1.0,
    )


@pytest.mark.parametrize(
    ("bucket_bytes", "names"),
    [(1, ["a", "b", "c", "d"]), (24, ["a", "bcd"]), (25, ["ab", "cd"]), (10**6, ["abcd"])],
)
def test_buckets_close_at_their_size_and_give_the_tensors_back(
    bucket_bytes: int, names: list[str]
) -> None:
    buckets = list(bucketize(TENSORS, bucket_bytes))
    assert ["".join(entry.name for entry in layout) for layout, _ in buckets] == names
    back = [pair for layout, arrays in buckets for pair in tensors_of(layout, arrays)]
    for (name, tensor), (other_name, other) in zip(TENSORS, back, strict=True):
        assert (name, tensor.dtype, tensor.shape) == (other_name, other.dtype, other.shape)
        assert torch.equal(tensor.nan_to_num(), other.nan_to_num())
    # 24 + 8 + 8 + 12 bytes
    assert sum(a.nbytes for _, arrays in buckets for a in arrays) == 52


def test_arrays_are_views_of_the_senders_memory() -> None:
    tensor = torch.zeros(2)
    ((_, (array,)),) = bucketize([("w", tensor)], 1)
    tensor[0] = 1.0
    assert array.view(np.float32).tolist() == [1.0, 0.0]


def test_read_only_memory_gives_tensors_without_a_warning() -> None:
    ((layout, arrays),) = bucketize([("w", torch.ones(2))], 1)
    arrays[0].flags.writeable = False
    assert dict(tensors_of(layout, arrays))["w"].tolist() == [1.0, 1.0]


def test_digest_is_xxh3_over_layout_and_bytes() -> None:
    ((layout, arrays),) = bucketize([("w", torch.tensor([1.0, 2.0]))], 1)
    digest = Digest()
    digest.add(layout, arrays)
    plain = b"w|float32|(2,)" + np.array([1.0, 2.0], dtype="<f4").tobytes()
    assert digest.hex() == xxhash.xxh3_64_hexdigest(plain)


def test_digest_does_not_depend_on_bucket_borders_but_on_all_else() -> None:
    def digest(tensors: list[tuple[str, torch.Tensor]], bucket_bytes: int = 10**6) -> str:
        buckets = list(bucketize(tensors, bucket_bytes))
        return digest_of(manifest(tuple(b[0] for b in buckets)), [b[1] for b in buckets])

    base = digest(TENSORS)
    assert digest(TENSORS, 1) == digest(TENSORS, 25) == base
    a = TENSORS[0][1]
    changed = a.clone()
    changed.view(torch.uint8)[1, 2] ^= 1
    others = [
        [("a", changed), *TENSORS[1:]],
        [("a2", a), *TENSORS[1:]],
        [("a", a.reshape(3, 2)), *TENSORS[1:]],
        [("a", a.view(torch.int32)), *TENSORS[1:]],
        TENSORS[::-1],
        TENSORS[:-1],
    ]
    assert len({base, *map(digest, others)}) == 1 + len(others)


def test_a_missing_bucket_or_array_is_an_error() -> None:
    buckets = list(bucketize(TENSORS, 25))
    whole = manifest(tuple(b[0] for b in buckets))
    arrays = [b[1] for b in buckets]
    with pytest.raises(ValueError, match="shorter"):
        digest_of(whole, arrays[:1])
    with pytest.raises(ValueError, match="shorter"):
        digest_of(whole, [arrays[0], arrays[1][:1]])


def test_manifest_survives_plain_values() -> None:
    whole = manifest(tuple(layout for layout, _ in bucketize(TENSORS, 25)))
    values = whole.to_dict()
    values["buckets"] = [[{**t, "shape": list(t["shape"])} for t in b] for b in values["buckets"]]
    assert Manifest.from_dict(values) == whole
    assert whole.num_tensors == 4
    assert replace(whole, buckets=()).num_tensors == 0
