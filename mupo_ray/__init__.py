"""MUPO and its sibling methods for vision-language models, native to Ray."""

__version__ = "0.1.0"
