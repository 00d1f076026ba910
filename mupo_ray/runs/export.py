"""A checkpoint's model as a folder of its own, ready to load or to publish."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from mupo_ray.errors import CheckpointError, ConfigError
from mupo_ray.runs.folder import HF_FOLDER, STATE_FILE, latest_complete, verify
from mupo_ray.runs.model_card import model_card
from mupo_ray.runs.summary import read_run
from mupo_ray.settings.load import RUN_FILE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mupo_ray.runs.folder import RunState
    from mupo_ray.runs.summary import RunFiles

_LOGGER = logging.getLogger(__name__)

# What transformers and vLLM read; of each row one file is enough.
_NEEDED = (
    ("config.json",),
    ("generation_config.json",),
    ("processor_config.json", "preprocessor_config.json"),
    ("tokenizer.json", "vocab.json"),
    ("model.safetensors", "model.safetensors.index.json"),
)


def export_checkpoint(source: Path, out: Path, *, step: int | None = None) -> Path:
    """Copy a checkpoint's model, processor and generation config, and write a model card.

    Args:
        source: folder of a run, whose newest whole checkpoint is taken, or of one checkpoint.
        out: new or empty folder; it holds all of the export or does not come to be.
        step: finished steps of the checkpoint to take.

    Returns:
        `out`.

    Raises:
        CheckpointError: no such run or checkpoint, or it is not whole.
        ConfigError: `out` is not empty, or `step` is not that of the checkpoint named.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} is not empty; should be a new or an empty folder")
    checkpoint, state = find_checkpoint(source, step)
    model = checkpoint / HF_FOLDER
    for names in _NEEDED:
        if not any((model / name).is_file() for name in names):
            raise CheckpointError(f"{model} has no {' or '.join(names)}; use another checkpoint")
    out = out.absolute()
    draft = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        # Contents without modes: weights are written readable by their owner alone.
        shutil.copytree(model, draft, copy_function=shutil.copyfile)
        card = model_card(_run_of(checkpoint), state, out.name)
        (draft / "README.md").write_text(card, encoding="utf-8")
        draft.rename(out)
    except OSError as err:
        raise CheckpointError(f"cannot write {out}: {err}") from err
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return out


def find_checkpoint(source: Path, step: int | None = None) -> tuple[Path, RunState]:
    """The checkpoint meant by a folder and, perhaps, a step; it is whole.

    Raises:
        CheckpointError: there is none.
        ConfigError: the folder is a checkpoint of another step.
    """
    if not source.is_dir():
        raise CheckpointError(
            f"{source} is no folder; should be that of a run or of a checkpoint in it"
        )
    if (source / STATE_FILE).exists() or (source / HF_FOLDER).is_dir():
        state = verify(source)
        if step not in (None, state.step):
            raise ConfigError(f"{source} is a checkpoint of step {state.step}, got --step {step}")
        return source, state
    if step is not None:
        folder = source / f"step_{step:06d}"
        if not folder.is_dir():
            there = ", ".join(_steps(source)) or "none"
            raise CheckpointError(f"{source} has no checkpoint of step {step}; there are: {there}")
        return folder, verify(folder)
    newest = latest_complete(source)
    if newest is None:
        there = ", ".join(_steps(source))
        why = f"none of {there} is whole" if there else "it has no step_... folder"
        raise CheckpointError(f"{source} holds no whole checkpoint: {why}")
    return newest, verify(newest)


def find_model(source: str) -> tuple[str, Path | None]:
    """Folder or hub id of the model that a user means, and the run it comes from.

    Args:
        source: a Hugging Face folder or id, a checkpoint `step_...` of a run, or a run, whose
            newest whole checkpoint is taken.

    Raises:
        CheckpointError: a folder without a model or a whole checkpoint.
    """
    folder = Path(source).expanduser()
    if not folder.is_dir():
        return source, None
    if not (folder / "config.json").is_file():
        folder = find_checkpoint(folder)[0] / HF_FOLDER
    run = folder.absolute().parent.parent
    return str(folder), run if (run / RUN_FILE).is_file() else None


def _steps(run_dir: Path) -> Iterator[str]:
    return (path.name for path in sorted(run_dir.glob("step_*")) if path.is_dir())


def _run_of(checkpoint: Path) -> RunFiles | None:
    """The run around a checkpoint; None where it was moved away from it."""
    try:
        return read_run(checkpoint.absolute().parent)
    except CheckpointError as err:
        _LOGGER.warning("the model card cannot tell about the run: %s", err)
        return None
