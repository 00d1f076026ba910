"""What the driver shares with the train workers, without their libraries.

The driver, Ray Train's controller and its workers are processes of their own. Only the workers
need the loop, and with it torch's, DeepSpeed's and transformers' ten seconds of importing.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from mupo_ray.data.render import PromptRenderer

if TYPE_CHECKING:
    from pathlib import Path

    from mupo_ray.config import Config

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


def train_loop(inputs: dict[str, Any]) -> None:
    """Ray Train's `train_loop_per_worker`; see `mupo_ray.train.loop.train_loop`."""
    from mupo_ray.train.loop import train_loop as run

    run(inputs)


def train_runs(inputs: dict[str, Any]) -> None:
    """The same of a session; see `mupo_ray.train.loop.train_runs`."""
    from mupo_ray.train.loop import train_runs as run

    run(inputs)


def early_stop(run_dir: Path) -> str | None:
    """Where and why a run ended before its last step; None where it did not."""
    if not (run_dir / STOP_FILE).exists():
        return None
    record = json.loads((run_dir / STOP_FILE).read_text())
    return f"stopped at step {record['step']}: {record['message']}"


def hash_of(config: Config) -> str:
    """Fingerprint of all that decides a run's numbers."""
    exclude = dict(_MAY_CHANGE)
    if config.collapse.action == "raise_diversity_weight":
        # Evaluations then decide what is rewarded.
        del exclude["eval"], exclude["collapse"]
    text = config.model_dump_json(exclude=exclude)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def make_renderer(config: Config) -> PromptRenderer:
    """The renderer that a config describes."""
    return PromptRenderer.from_pretrained(
        config.model.path,
        template=config.data.template,
        system_prompt=config.data.system_prompt,
        max_prompt_tokens=config.data.max_prompt_tokens,
        min_pixels=config.data.min_pixels,
        max_pixels=config.data.max_pixels,
    )
