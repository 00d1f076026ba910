"""The configuration: one strict, frozen tree, read from YAML files and dotted overrides.

Precedence: field defaults < `--config` files from left to right < `section.field=value` overrides.
A variant (the method, say) is replaced whole when a later layer gives it another `name`.
Derived values are properties; a validator may reject but never rewrites what was asked for.

What is above this file reads the tree; below stand its sections (`settings/`) and the methods, each
with its own section and the rules that it brings.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, model_validator

from mupo_ray.methods import GrpoConfig, MupoConfig, PassKConfig
from mupo_ray.methods.base import OWN_METHODS, build
from mupo_ray.settings.load import load
from mupo_ray.settings.sections import Sections
from mupo_ray.types import own_parts

if TYPE_CHECKING:
    from collections.abc import Sequence


class Config(Sections):
    """Everything that a run depends on."""

    method: Annotated[
        GrpoConfig | MupoConfig | PassKConfig, Field(discriminator="name"), OWN_METHODS
    ] = MupoConfig()
    """How rewards become advantages."""

    @property
    def run_dir(self) -> Path:
        """Folder of this run."""
        return Path(self.run.storage_path).expanduser().absolute() / self.run.name

    def with_absolute_paths(self) -> Config:
        """The same config with local paths made absolute.

        Workers run in folders of their own, so a path relative to the driver's means nothing to
        them. Names that are no local path here (ids of a hub, globs of a mounted store) stay.
        """

        def absolute(text: str) -> str:
            path = Path(text).expanduser()
            # A glob is no file of its own, but has a suffix and a folder; a hub id has no suffix.
            is_glob = path.suffix != "" and any(c in text for c in "*?[") and path.parent.is_dir()
            return str(path.absolute()) if path.exists() or is_glob else text

        def section(name: str, field: str) -> Any:
            part = getattr(self, name)
            value = getattr(part, field)
            return part.model_copy(update={field: None if value is None else absolute(value)})

        storage = str(Path(self.run.storage_path).expanduser().absolute())
        return self.model_copy(
            update={
                "run": self.run.model_copy(update={"storage_path": storage}),
                "model": section("model", "path"),
                "data": section("data", "train").model_copy(
                    update={"template": absolute(self.data.template)}
                ),
                "embedder": section("embedder", "model"),
                "eval": section("eval", "path"),
            }
        )

    @model_validator(mode="after")
    def a_collapse_action_has_what_it_acts_on(self) -> Self:
        """Alarms come from evaluations with diversity."""
        if self.collapse.action != "none" and (self.eval.path is None or self.eval.num_samples < 2):
            raise ValueError(
                f"collapse.action = {self.collapse.action} needs evaluations that measure "
                f"diversity, got eval.path = {self.eval.path}, eval.num_samples = "
                f"{self.eval.num_samples}; give a set and at least 2 samples, or set the action to "
                "none"
            )
        return self

    @model_validator(mode="after")
    def the_method_fits(self) -> Self:
        """The method's own rules hold, and no reward of the run's has the name of its part."""
        self.method.check(self)
        parts = own_parts(build(self.method, self).metrics_declared)
        for reward in self.reward.extra:
            if reward.name in parts:
                raise ValueError(
                    f"reward.extra has {reward.name!r}, which is a part of the reward of "
                    f"method.name = {self.method.name}; should be another name"
                )
        return self

    @model_validator(mode="after")
    def sampled_logprobs_are_the_policys(self) -> Self:
        """Engines report log-probabilities before temperature or after the nucleus cut."""
        rollout = self.rollout
        if rollout.temperature != 1.0 and rollout.top_p < 1.0:
            raise ValueError(
                f"rollout.temperature = {rollout.temperature:g} with rollout.top_p = "
                f"{rollout.top_p:g}: the engine's log-probabilities would be those of the cut "
                "nucleus, not the policy's; set one of the two to 1"
            )
        return self

    @model_validator(mode="after")
    def longest_sequence_fits(self) -> Self:
        """A longest prompt with a longest response fits an engine and a micro-batch."""
        longest = self.data.max_prompt_tokens + self.rollout.max_new_tokens
        for field, limit in (
            ("rollout.max_model_len", self.rollout.max_model_len),
            ("train.micro_batch_tokens", self.train.micro_batch_tokens),
        ):
            if longest > limit:
                raise ValueError(
                    f"data.max_prompt_tokens + rollout.max_new_tokens = {longest} exceeds {field} "
                    f"= {limit}; should be at most that"
                )
        overlong = self.reward.overlong
        if overlong is not None and overlong.buffer_tokens > self.rollout.max_new_tokens:
            raise ValueError(
                f"reward.overlong.buffer_tokens = {overlong.buffer_tokens} exceeds "
                f"rollout.max_new_tokens = {self.rollout.max_new_tokens}; should be at most that"
            )
        return self

    @model_validator(mode="after")
    def every_update_has_a_prompt(self) -> Self:
        """The prompts of a step are shared out among its updates."""
        if self.train.updates_per_step > self.data.prompts_per_step:
            raise ValueError(
                f"train.updates_per_step = {self.train.updates_per_step} exceeds "
                f"data.prompts_per_step = {self.data.prompts_per_step}; should be at most that"
            )
        return self

    @model_validator(mode="after")
    def cpu_has_no_gpu_features(self) -> Self:
        """GPU-only choices need run.device cuda."""
        if self.run.device == "cuda":
            return self
        for field, value, wrong in (
            ("sync.transport", self.sync.transport, self.sync.transport in ("nccl", "ipc")),
            ("train.offload_optimizer", True, self.train.offload_optimizer),
            (
                "embedder.gpus_per_actor",
                self.embedder.gpus_per_actor,
                self.embedder.gpus_per_actor > 0,
            ),
        ):
            if wrong:
                raise ValueError(f"{field} = {value} needs run.device cuda, got cpu")
        return self

    @model_validator(mode="after")
    def transport_suits_the_placement(self) -> Self:
        """Memory handles need a shared card; NCCL refuses one."""
        needs = {"ipc": "colocated", "nccl": "split"}.get(self.sync.transport)
        if needs is not None and self.placement.mode != needs:
            raise ValueError(
                f"sync.transport = {self.sync.transport} needs placement.mode {needs}, got "
                f"{self.placement.mode}; auto chooses by placement"
            )
        return self

    @model_validator(mode="after")
    def colocated_engines_find_cards(self) -> Self:
        """On GPUs, each colocated engine sits on trainers' cards of its own."""
        if self.run.device == "cuda" and self.placement.mode == "colocated":
            cards = self.rollout.num_engines * self.rollout.tensor_parallel_size
            if cards > self.train.num_workers:
                raise ValueError(
                    f"rollout.num_engines * rollout.tensor_parallel_size = {cards} exceeds "
                    f"train.num_workers = {self.train.num_workers}; colocated engines sit on the "
                    "trainers' cards, so it should be at most that"
                )
        return self


def load_config(
    files: Sequence[Path | str] = (),
    overrides: Sequence[str] = (),
    *,
    base: Config = Config(),  # noqa: B008  (frozen)
) -> Config:
    """Join defaults, files and overrides, and check the result.

    Args:
        files: YAML files or `run.json` of a run, later ones win. Relative paths resolve against the
            working directory.
        overrides: `section.field=value`, the value in YAML; all win over files.
        base: what stands where neither says anything.

    Raises:
        ConfigError: a file is missing or not YAML, or a key or value is wrong; one line a fault.
    """
    return load(base, files, overrides)


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--config FILE` and the overrides to a job's own flags."""
    parser.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="FILE",
        help="YAML file; may be given again, later files win",
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="section.field=value",
        help="a single value; wins over all files",
    )


def parse_cli(
    argv: Sequence[str] | None = None, parser: argparse.ArgumentParser | None = None
) -> tuple[Config, argparse.Namespace]:
    """Read a job's command line: `--config FILE ... section.field=value ...` and its own flags.

    Args:
        argv: arguments without the program's name; `sys.argv[1:]` where None.
        parser: holds the job's own flags (no positional ones); a bare one where None.

    Returns:
        The configuration and the parsed flags.

    Raises:
        ConfigError: as `load_config`.
    """
    parser = parser or argparse.ArgumentParser()
    add_config_arguments(parser)
    args = parser.parse_intermixed_args(argv)
    return load_config(args.config, args.overrides), args
