"""Reads a sweep file, with one clear line for each fault: where, what, got, should be."""

from __future__ import annotations

import difflib
import json
import re
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from mupo_ray.errors import ConfigError
from mupo_ray.settings.load import read_yaml
from mupo_ray.tune.spec import (
    Choices,
    FloatRange,
    GpSampler,
    GridSampler,
    HyperbandPruner,
    IntRange,
    MedianPruner,
    NoPruner,
    NsgaiiSampler,
    Objective,
    RandomSampler,
    SweepConfig,
    TpeSampler,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pydantic_core import ErrorDetails

_RANGES: dict[str, type[BaseModel]] = {"int": IntRange, "float": FloatRange, "categorical": Choices}
_VARIANTS: dict[str, dict[str, type[BaseModel]]] = {
    "sampler": {
        "tpe": TpeSampler,
        "gp": GpSampler,
        "random": RandomSampler,
        "grid": GridSampler,
        "nsgaii": NsgaiiSampler,
    },
    "pruner": {"none": NoPruner, "median": MedianPruner, "hyperband": HyperbandPruner},
}


def read_sweep(path: Path, changes: Mapping[str, Any] | None = None) -> SweepConfig:
    """Read and check a sweep file.

    Args:
        path: a YAML file.
        changes: fields given on the command line, which win over the file's.

    Raises:
        ConfigError: not readable, or a key or value is wrong; one line a fault.
    """
    tree, lines = read_yaml(path)
    given = changes or {}
    tree |= given
    lines = {**lines, **{(name,): "command line" for name in given}}
    try:
        return SweepConfig.model_validate_json(json.dumps(tree))
    except ValidationError as err:
        faults = [_line(fault, lines) for fault in err.errors(include_url=False)]
        raise ConfigError("\n".join(dict.fromkeys(faults))) from None


def _line(fault: ErrorDetails, lines: Mapping[tuple[str, ...], str]) -> str:
    at, section = _place(tuple(map(str, fault["loc"])))
    kind, given = fault["type"], fault["input"]
    if kind == "extra_forbidden":
        names = list(section.model_fields)
        close = difflib.get_close_matches(at[-1], names, n=1)
        hint = f"did you mean {close[0]}?" if close else f"should be one of {', '.join(names)}"
        text = f"unknown key; {hint}"
    elif kind in ("union_tag_invalid", "union_tag_not_found"):
        tag = "type" if at[0] == "search" else "name"
        names = list(_RANGES if at[0] == "search" else _VARIANTS[at[0]])
        at = (*at, tag)
        got = given.get(tag) if isinstance(given, dict) else given
        text = f"got {json.dumps(got)}, should be one of {', '.join(names)}"
    elif kind == "missing":
        text = "missing; should be given"
    elif kind == "value_error":
        text = str(fault["ctx"]["error"])
    elif at[-1] in ("low", "high") and at[0] == "search":
        text = f"got {json.dumps(given)}, should be a number or an expression"
    else:
        should = re.sub("^(Input|String|Dictionary) ", "", fault["msg"])
        text = f"got {json.dumps(given)}, {should[0].lower()}{should[1:]}"
    where = next((lines[at[:i]] for i in range(len(at), 0, -1) if at[:i] in lines), None)
    return ": ".join(part for part in (where, ".".join(at), text) if part)


def _place(loc: tuple[str, ...]) -> tuple[tuple[str, ...], type[BaseModel]]:
    """Path of a fault without the variants' names that pydantic puts in, and its section."""
    match loc:
        case ("search", path, kind, *rest) if kind in _RANGES:
            # The last part may name one type of a union.
            return ("search", path, *rest[:1]), _RANGES[kind]
        case (("sampler" | "pruner") as field, name, *rest) if name in _VARIANTS[field]:
            return (field, *rest), _VARIANTS[field][name]
        case ("objectives", _, *_):
            return loc, Objective
    return loc, SweepConfig
