"""Optuna's samplers and pruners, as a sweep's settings name them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optuna import pruners, samplers

from mupo_ray.tune import spec

if TYPE_CHECKING:
    from mupo_ray.tune.spec import SweepConfig


def make_sampler(config: SweepConfig, worker: int) -> samplers.BaseSampler:
    """The sampler of one worker.

    Args:
        config: of the sweep.
        worker: number of the worker, so that two do not draw the same points.
    """
    seed = config.seed + worker
    match config.sampler:
        case spec.TpeSampler(startup_trials=startup):
            return samplers.TPESampler(n_startup_trials=startup, seed=seed)
        case spec.GpSampler(startup_trials=startup):
            return samplers.GPSampler(
                n_startup_trials=startup, seed=seed, warn_independent_sampling=False
            )
        case spec.NsgaiiSampler(population_size=size):
            return samplers.NSGAIISampler(population_size=size, seed=seed)
        case spec.RandomSampler() | spec.GridSampler():
            # The points of a grid are queued when the study is made.
            return samplers.RandomSampler(seed=seed)


def make_pruner(config: SweepConfig, num_steps: int) -> pruners.BasePruner:
    """The pruner of a sweep whose trials have this many training steps."""
    match config.pruner:
        case spec.NoPruner():
            return pruners.NopPruner()
        case spec.MedianPruner(startup_trials=startup, warmup_steps=warmup):
            return pruners.MedianPruner(n_startup_trials=startup, n_warmup_steps=warmup)
        case spec.HyperbandPruner(min_steps=least, reduction_factor=factor):
            return pruners.HyperbandPruner(
                min_resource=least, max_resource=num_steps, reduction_factor=factor
            )
