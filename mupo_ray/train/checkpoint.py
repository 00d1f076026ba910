"""Checkpoints that are whole or refused.

    <folder>/
      trainer/      DeepSpeed's model and optimizer state; each rank writes its own files
      rng/          random state of each rank
      hf/           a plain save_pretrained folder with processor and generation config
      state.json    where the run stands, and the size of every other file; written last

Each rank may write into a folder of its own (Ray Train copies the folders of all ranks over each
other into storage): no two ranks write the same path, and state.json, in rank 0's folder, lists the
files of all ranks. A folder counts as a checkpoint only if every file listed is there in its size.
"""

from __future__ import annotations

import json
import logging
import random
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from transformers import AutoProcessor

from mupo_ray.errors import CheckpointError
from mupo_ray.train.weights import iter_parameters

if TYPE_CHECKING:
    from mupo_ray.train.policy import DeepSpeedPolicy

_LOGGER = logging.getLogger(__name__)

STATE_FILE = "state.json"
HF_FOLDER = "hf"
_TRAINER_FOLDER = "trainer"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """Where a run stands between two steps."""

    step: int
    """Finished training steps."""
    stream_position: int
    """Position of the next prompt in the endless sequence."""
    config_hash: str
    """Of the config that wrote it."""


def save(policy: DeepSpeedPolicy, folder: Path, state: RunState) -> None:
    """Write a checkpoint (C). On return every rank's files are written, state.json too.

    Args:
        policy: between two steps.
        folder: this rank's folder; the same one for all ranks will do.
        state: the same on all ranks.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / STATE_FILE).unlink(missing_ok=True)
    policy.engine.save_checkpoint(str(folder), tag=_TRAINER_FOLDER, save_latest=False)
    _save_hf(policy, folder / HF_FOLDER)
    rng = folder / "rng" / f"rank_{policy.rank:05d}.pt"
    rng.parent.mkdir(exist_ok=True)
    torch.save(_rng_state(), rng)

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
        draft = folder / f"{STATE_FILE}.draft"
        draft.write_text(json.dumps(record, indent=1) + "\n")
        draft.replace(folder / STATE_FILE)
    dist.barrier()


def load(policy: DeepSpeedPolicy, folder: Path) -> RunState:
    """Bring a policy and this process's random state to where `save` left them (C).

    Raises:
        CheckpointError: the checkpoint is not whole, or was written by another number of workers,
            ZeRO stage or dtype.
    """
    state, record = _read(folder)
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
    return state


def verify(folder: Path) -> RunState:
    """Check that a checkpoint is whole.

    Raises:
        CheckpointError: names the first file that is missing or has another size.
    """
    return _read(folder)[0]


def latest_complete(run_dir: Path) -> Path | None:
    """The whole checkpoint of the highest step below a run's folder; None where there is none.

    A newer one that is not whole is passed over with a warning that names what it lacks.
    """
    found = []
    for state_file in run_dir.glob(f"*/{STATE_FILE}"):
        try:
            found.append((verify(state_file.parent).step, state_file.parent))
        except CheckpointError as err:
            _LOGGER.warning("passed over: %s", err)
    return max(found)[1] if found else None


def keep_latest(run_dir: Path, keep: int) -> None:
    """Remove all but the newest whole checkpoints below a run's folder.

    Args:
        run_dir: of the run; all ranks have written.
        keep: how many stay.
    """
    found = sorted(path.parent for path in run_dir.glob(f"step_*/{STATE_FILE}"))
    for folder in found[:-keep]:
        # Without its state it is no checkpoint, should removing be cut short.
        (folder / STATE_FILE).unlink()
        shutil.rmtree(folder)


def _read(folder: Path) -> tuple[RunState, dict[str, Any]]:
    """state.json after checking the files it lists."""
    try:
        record = json.loads((folder / STATE_FILE).read_text())
        state = RunState(**{key: record[key] for key in RunState.__slots__})
        files: dict[str, int] = record["files"]
    except (OSError, ValueError, KeyError, TypeError) as err:
        raise CheckpointError(
            f"checkpoint {folder} is not whole: {STATE_FILE} cannot be read ({err!r}); it is "
            "written last, so saving was cut short"
        ) from err
    for name, size in files.items():
        path = folder / name
        have = path.stat().st_size if path.is_file() else None
        if have != size:
            what = "is missing" if have is None else f"has {have} bytes instead of {size}"
            raise CheckpointError(
                f"checkpoint {folder} is not whole: {_kind(name)} {name} {what}; use an older one"
            )
    return state, record


def _kind(name: str) -> str:
    """What a person calls the file."""
    if name.endswith("optim_states.pt"):
        return "optimizer shard"
    return "model shard" if name.endswith("model_states.pt") else "file"


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
