"""The trainer's weights, one after another, as engines and files name them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from mupo_ray.train.adapter import merged

if TYPE_CHECKING:
    from mupo_ray.train.policy import DeepSpeedPolicy


def iter_weights(policy: DeepSpeedPolicy) -> Iterator[tuple[str, torch.Tensor]]:
    """Every weight of the policy under its saved name, in the model's order.

    Collective under ZeRO-3: every rank must iterate to the end, and each weight is gathered when it
    is reached and dropped when the next one is, so at most one is whole at a time. A matrix that
    two layers share comes once.

    Yields:
        (name, contiguous tensor in the model's dtype on the trainer's device). The tensor may be
        the parameter's own memory: copy it before the next optimizer step.
    """
    names = saved_names(policy.model)
    for name, tensor in iter_parameters(policy.model):
        yield names[name], tensor


def iter_parameters(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """As `iter_weights`, under the names of the model in memory; adapters are merged."""
    for name, parameters, compute in merged(model):
        if not hasattr(parameters[0], "ds_id"):
            yield name, compute().contiguous()
            continue
        import deepspeed

        with deepspeed.zero.GatheredParameters(parameters):
            yield name, compute().contiguous()


def saved_names(model: Any) -> dict[str, str]:
    """Name in memory -> name in a saved folder (transformers 5.19).

    transformers renames parameters while loading and back while saving, by patterns it keeps with
    the model; running the way back over placeholders yields the names without touching a weight.
    """
    from transformers.core_model_loading import revert_weight_conversion

    names = {}
    for name, _, _ in merged(model):
        (saved,) = revert_weight_conversion(model, {name: torch.empty(0)})
        names[name] = saved
    return names
