"""A checkpoint's weights into a serving engine, by the receiving end that training uses.

folder --read--> buckets in the object store --stage--> checksum --commit--> loaded, caches clear
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import ray

from mupo_ray.errors import CheckpointError, WeightSyncError
from mupo_ray.sync.broadcast import WeightPublisher, publish

if TYPE_CHECKING:
    import torch

    from mupo_ray.serving.gate import VersionGate
    from mupo_ray.serving.openai_engine import OpenAiEngine

_BUCKET_BYTES = 256 * 2**20
_TIMEOUT_S = 600.0
_HEAD = "lm_head.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySource:
    """Weights and the version that responses of theirs carry."""

    folder: str
    """Hugging Face folder, or an id of one."""
    version: int
    run: Path | None
    """Folder of the run they come from."""

    @property
    def name(self) -> str:
        """Run and checkpoint, or the folder's name, or the id."""
        if self.run is not None:
            return f"{self.run.name}/{Path(self.folder).parent.name}"
        return Path(self.folder).name if Path(self.folder).is_absolute() else self.folder


def find_policy(model: str, storage_path: str, version: int | None) -> PolicySource:
    """The weights that a user means.

    Args:
        model: a run or a checkpoint (also by name, below `storage_path`), a folder or an id.
        storage_path: folder of runs.
        version: policy version; the checkpoint's finished steps, or 0, where None.

    Raises:
        CheckpointError: a folder without a model or a whole checkpoint.
    """
    # Not above: it brings torch and DeepSpeed, seconds to import.
    from mupo_ray.runs.export import find_model

    by_name = Path(storage_path).expanduser() / model
    if not Path(model).expanduser().is_dir() and by_name.is_dir():
        model = str(by_name)
    folder, run = find_model(model)
    if version is None:
        step = Path(folder).absolute().parent.name.removeprefix("step_")
        version = int(step) if run is not None and step.isdecimal() else 0
    is_local = Path(folder).expanduser().is_dir()
    return PolicySource(
        folder=str(Path(folder).expanduser().absolute()) if is_local else folder,
        version=version,
        run=run,
    )


async def swap(engine: OpenAiEngine, gate: VersionGate, source: PolicySource) -> None:
    """Serve other weights of the same model; requests wait and none is dropped.

    Reading and checking go on beside requests. The gate then closes for as long as those in
    progress take, and the load.

    Args:
        engine: takes them; where the load fails it stays fenced.
        gate: of the requests.
        source: a local folder.

    Raises:
        CheckpointError: the folder has no weights.
        WeightSyncError: they are not whole, or not this model's.
    """
    name = f"mupo-serving-{uuid.uuid4().hex[:12]}"
    publisher = ray.remote(WeightPublisher).options(name=name, num_cpus=0).remote()
    try:
        manifest, _ = await asyncio.to_thread(
            publish,
            publisher,
            name,
            source.version,
            _saved_weights(Path(source.folder)),
            bucket_bytes=_BUCKET_BYTES,
            timeout_s=_TIMEOUT_S,
        )
        digest = await engine.stage(manifest.to_dict())
        if digest != manifest.digest:
            raise WeightSyncError(f"checksum {digest} was staged, {manifest.digest} was read")
        async with gate.swap(source.version):
            await engine.commit(source.version, digest, "wait")
    finally:
        ray.kill(publisher)


def check_alike(served: str, offered: str) -> None:
    """Refuse weights of another model before any of them is loaded.

    Args:
        served: folder of the weights that are served; an id of a hub is not looked into.
        offered: folder of those to come.

    Raises:
        WeightSyncError: names or shapes differ.
        CheckpointError: a folder has no weights.
    """
    if not Path(served).is_dir():
        return
    ours, theirs = _shapes(Path(served)), _shapes(Path(offered))
    differing = sorted(
        name
        for name in ours.keys() | theirs.keys()
        # A head that shares the embedding's weights may be saved or left out.
        if ours.get(name) != theirs.get(name)
        and not (name == _HEAD and None in (ours.get(name), theirs.get(name)))
    )
    if differing:
        name = differing[0]
        raise WeightSyncError(
            f"{offered} holds another model: {name} has shape {theirs.get(name)}, {ours.get(name)} "
            f"is served ({len(differing)} such tensors)"
        )


def _shapes(folder: Path) -> dict[str, list[int]]:
    from safetensors import safe_open

    shapes: dict[str, list[int]] = {}
    for file in _weight_files(folder):
        with safe_open(file, framework="pt") as saved:
            shapes |= {name: saved.get_slice(name).get_shape() for name in saved.keys()}  # noqa: SIM118 - not a mapping
    return shapes


def _saved_weights(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    from safetensors import safe_open

    for file in _weight_files(folder):
        with safe_open(file, framework="pt") as saved:
            for name in saved.keys():  # noqa: SIM118 - not a mapping
                yield name, saved.get_tensor(name)


def _weight_files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise CheckpointError(f"{folder} does not exist; should be a run, a checkpoint or a folder")
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{folder} has no *.safetensors; should be a Hugging Face folder")
    return files
