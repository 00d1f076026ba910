"""Methods: each a file that says what it changes of plain GRPO, with its section and its rules."""

from typing import Any

from mupo_ray.errors import ConfigError
from mupo_ray.methods.base import Method, make_method
from mupo_ray.methods.extension import Extension, ExtensionConfig
from mupo_ray.methods.grpo import Grpo, GrpoConfig
from mupo_ray.methods.mupo import Mupo, MupoConfig
from mupo_ray.methods.pass_k import PassK, PassKConfig
from mupo_ray.settings.variants import load_class

METHODS: tuple[type[Method[Any]], ...] = (Grpo, Mupo, PassK)
"""Those that a configuration names without a module."""


def title_of(name: str) -> str:
    """How a model card names a method; its bare name where its module is not at hand."""
    known = {str(method.Config().name): method.title for method in METHODS}
    try:
        return known.get(name) or load_class(name, Method).title
    except ConfigError:
        return name


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
    "title_of",
]
