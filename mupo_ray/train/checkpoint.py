"""Checkpoints that are whole or refused.

    <folder>/
      trainer/      DeepSpeed's model and optimizer state; each rank writes its own files
      rng/          random state of each rank
      hf/           a plain save_pretrained folder with processor and generation config
      method.npz    what the method remembers, where it remembers anything
      state.json    where the run stands, and the size of every other file; written last

All ranks write into one folder, no two of them the same path, and rank 0 lists the files of all in
state.json. A folder counts as a checkpoint only if every file listed is there in its size
(`runs/folder.py`).
"""

from __future__ import annotations

import random
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from transformers import AutoProcessor

from mupo_ray.errors import CheckpointError, TrainingError
from mupo_ray.files import sha256_of, write_json
from mupo_ray.runs.folder import HF_FOLDER, STATE_FILE, RunState, read_state
from mupo_ray.train.collective import gather_objects
from mupo_ray.train.weights import iter_parameters

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mupo_ray.methods import Method
    from mupo_ray.train.policy import DeepSpeedPolicy

_TRAINER_FOLDER = "trainer"
_METHOD_FILE = "method.npz"


def save(
    policy: DeepSpeedPolicy, folder: Path, state: RunState, method: Method[Any] | None = None
) -> None:
    """Write a checkpoint (C). On return every rank's files are written, state.json too.

    Args:
        policy: between two steps.
        folder: the same one for all ranks.
        state: the same on all ranks.
        method: whose memory is kept; None where there is none.

    Raises:
        TrainingError: the method remembers different things on different ranks.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / STATE_FILE).unlink(missing_ok=True)
    policy.engine.save_checkpoint(str(folder), tag=_TRAINER_FOLDER, save_latest=False)
    _save_hf(policy, folder / HF_FOLDER)
    rng = folder / "rng" / f"rank_{policy.rank:05d}.pt"
    rng.parent.mkdir(exist_ok=True)
    torch.save(_rng_state(), rng)
    _save_method(policy, folder / _METHOD_FILE, {} if method is None else method.state())

    # Files of all ranks exist before they are listed, where ranks share a folder.
    dist.barrier()
    files: list[dict[str, int]] = [{} for _ in range(policy.world_size)]
    dist.all_gather_object(files, _sizes(folder))
    if policy.rank == 0:
        record = {
            **asdict(state),
            "optimizer_steps": policy.steps_done,
            **_shape_of(policy),
            "files": {name: size for part in files for name, size in sorted(part.items())},
        }
        write_json(folder / STATE_FILE, record)
    dist.barrier()


def load(policy: DeepSpeedPolicy, folder: Path, method: Method[Any] | None = None) -> RunState:
    """Bring a policy, a method and this process's random state to where `save` left them (C).

    Raises:
        CheckpointError: the checkpoint is not whole, was written by another number of workers,
            ZeRO stage or dtype, or lacks what the method has to remember.
    """
    state, record = read_state(folder)
    for key, want in _shape_of(policy).items():
        if record[key] != want:
            raise CheckpointError(
                f"checkpoint {folder} was written with {key} = {record[key]} and this run has "
                f"{want}; optimizer state is cut to fit the former. Resume with the same, or start "
                f"a new run from the weights in {folder / HF_FOLDER}"
            )
    path, _ = policy.engine.load_checkpoint(str(folder), tag=_TRAINER_FOLDER)
    if path is None:
        raise CheckpointError(f"checkpoint {folder}: DeepSpeed found no state to load")
    policy.steps_done = int(record["optimizer_steps"])
    rng = folder / "rng" / f"rank_{policy.rank:05d}.pt"
    _set_rng_state(torch.load(rng, weights_only=False))
    if method is not None:
        _restore_method(method, folder / _METHOD_FILE)
    return state


def _save_method(policy: DeepSpeedPolicy, file: Path, state: Mapping[str, np.ndarray]) -> None:
    """Keep what a method remembers (C, where it remembers anything)."""
    file.unlink(missing_ok=True)
    if not state:
        return
    digests = gather_objects(
        sha256_of(b"".join(name.encode() + a.tobytes() for name, a in sorted(state.items())))
    )
    if len(set(digests)) > 1:
        raise TrainingError(
            "the method's state differs between ranks; it should depend on nothing but what "
            "`observe` is given"
        )
    if policy.rank == 0:
        np.savez(file, allow_pickle=False, **state)


def _restore_method(method: Method[Any], file: Path) -> None:
    names = method.state().keys()
    if not file.exists():
        if names:
            raise CheckpointError(
                f"checkpoint {file.parent} has no {_METHOD_FILE}, and the method has to remember "
                f"{', '.join(names)}; start a new run from the weights in "
                f"{file.parent / HF_FOLDER}"
            )
        return
    with np.load(file, allow_pickle=False) as state:
        method.restore(dict(state))


def _shape_of(policy: DeepSpeedPolicy) -> dict[str, Any]:
    """What optimizer state depends on."""
    return {
        "num_workers": policy.world_size,
        "zero_stage": policy.config.train.zero_stage,
        "dtype": policy.config.model.dtype,
    }


def _save_hf(policy: DeepSpeedPolicy, folder: Path) -> None:
    """A plain Hugging Face folder, written by rank 0 (C)."""
    weights = {}
    for name, tensor in iter_parameters(policy.model):
        # Under ZeRO-3 the gathered weight goes when the next one comes.
        if policy.rank == 0:
            weights[name] = tensor.to("cpu", copy=True)
    if policy.rank != 0:
        return
    policy.model.save_pretrained(folder, state_dict=weights)
    AutoProcessor.from_pretrained(policy.config.model.path).save_pretrained(folder)


def _sizes(folder: Path) -> dict[str, int]:
    """Size of every file below a folder, by relative path."""
    return {
        str(path.relative_to(folder)): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _rng_state() -> dict[str, Any]:
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def _set_rng_state(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])
