"""Low-rank adapters (LoRA) in the decoder, by peft 0.21.

The model keeps its class and its names: peft wraps single layers in place. Engines and saved
folders get merged weights, W + alpha / rank * B A, and know nothing of adapters.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mupo_ray.settings.sections import LoraConfig

_ADAPTER = "default"
_BASE = ".base_layer."


def add_adapter(model: Any, settings: LoraConfig, seed: int) -> None:
    """Freeze a model and put adapters into its decoder's layers, in place; they start at zero.

    Args:
        model: a Qwen2.5-VL or Qwen3-VL model; the vision tower is left without adapters.
        settings: rank, scale and layers.
        seed: of the matrices A, so that all ranks draw the same.
    """
    import peft

    targets = "|".join(settings.targets)
    config = peft.LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        target_modules=rf".*language_model\..*\.({targets})",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        peft.inject_adapter_in_model(config, model, adapter_name=_ADAPTER)


def merged(model: Any) -> Iterator[tuple[str, list[torch.nn.Parameter], Any]]:
    """Every parameter of the model without adapters.

    Yields:
        (name that it has without adapters, parameters that must be whole to compute it, function
        that returns it).
    """
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            continue
        owner, _, kind = name.partition(_BASE)
        if kind != "weight":
            yield name.replace(_BASE, "."), [parameter], parameter.detach
            continue
        layer = model.get_submodule(owner)
        down, up = layer.lora_A[_ADAPTER].weight, layer.lora_B[_ADAPTER].weight
        yield f"{owner}.weight", [parameter, down, up], _Merge(layer, parameter, down, up)


@contextlib.contextmanager
def adapters_off(model: Any) -> Iterator[None]:
    """The model as it was before its adapters were trained, for the time of the context."""
    layers = [module for module in model.modules() if hasattr(module, "lora_A")]
    for layer in layers:
        layer.set_scale(_ADAPTER, 0.0)
    try:
        yield
    finally:
        for layer in layers:
            layer.set_scale(_ADAPTER, 1.0)


class _Merge:
    def __init__(self, layer: Any, *parameters: torch.nn.Parameter) -> None:
        self._scale = layer.scaling[_ADAPTER]
        self._parameters = parameters

    def __call__(self) -> torch.Tensor:
        base, down, up = (p.detach().float() for p in self._parameters)
        whole: torch.Tensor = base + self._scale * (up @ down)
        return whole.to(self._parameters[0].dtype)
