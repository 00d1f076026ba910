"""Methods: each a file that says what it changes of plain GRPO, with its section and its rules."""

from typing import Any

from mupo_ray.methods.base import Method, make_method
from mupo_ray.methods.extension import Extension, ExtensionConfig
from mupo_ray.methods.grpo import Grpo, GrpoConfig
from mupo_ray.methods.mupo import Mupo, MupoConfig
from mupo_ray.methods.pass_k import PassK, PassKConfig

METHODS: tuple[type[Method[Any]], ...] = (Grpo, Mupo, PassK)
"""Those that a configuration names without a module."""

__all__ = [
    "METHODS",
    "Extension",
    "ExtensionConfig",
    "Grpo",
    "GrpoConfig",
    "Method",
    "Mupo",
    "MupoConfig",
    "PassK",
    "PassKConfig",
    "make_method",
]
