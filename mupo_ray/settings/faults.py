"""Turns pydantic's findings into one clear line each: where, what, got, should be."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any

from mupo_ray.settings.variants import UNKNOWN_MODULE, discriminator, fields, is_open

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import BaseModel, ValidationError
    from pydantic_core import ErrorDetails

Sources = dict[tuple[str, ...], str]
"""Path of a value -> file and line, or override, that set it."""

_MISSING = object()


def describe(
    error: ValidationError,
    root: type[BaseModel],
    tree: Mapping[str, Any],
    sources: Mapping[tuple[str, ...], str],
) -> list[str]:
    """One line for each fault.

    Args:
        error: what pydantic found.
        root: class of the tree.
        tree: the plain values that were checked.
        sources: path -> file and line, or override, that set it.

    Returns:
        Lines like `my.yaml:7: train.num_step: unknown key; did you mean train.num_steps?`.
    """
    return [_line(fault, root, tree, sources) for fault in error.errors(include_url=False)]


def _line(
    fault: ErrorDetails,
    root: type[BaseModel],
    tree: Mapping[str, Any],
    sources: Mapping[tuple[str, ...], str],
) -> str:
    kind = fault["type"]
    path, section, is_own = _walk(fault["loc"], root, tree)
    if kind in ("union_tag_invalid", UNKNOWN_MODULE):
        path = (*path, "name")
    source = next((sources[path[:i]] for i in range(len(path), 0, -1) if path[:i] in sources), None)
    if source is not None and source.startswith(f"override {'.'.join(path)}="):
        where = source
    else:
        where = ": ".join(part for part in (source, ".".join(path)) if part)
    if kind == "extra_forbidden":
        text = f"unknown key{_suggestion(path, section, root)}"
    elif kind == "union_tag_invalid":
        context = fault["ctx"]
        text = f"got {context['tag']!r}, should be one of {context['expected_tags']}"
        text += ", or module:Class of your own" if is_own else ""
    elif kind == UNKNOWN_MODULE:
        text = fault["msg"]
    elif kind == "value_error":
        text = str(fault["ctx"]["error"])
    elif kind == "missing":
        text = "missing; should be given"
    elif kind in ("model_type", "model_attributes_type", "dict_type"):
        text = f"got {_shown(fault['input'])}, should be a section (`{path[-1]}:`, fields below it)"
    else:
        should = re.sub("^(Input|String) ", "", fault["msg"])
        text = f"got {_shown(fault['input'])}, {should[0].lower()}{should[1:]}"
        if kind == "string_type" and isinstance(fault["input"], bool | int | float):
            text += f"; put it in quotes: '\"{fault['input']}\"'"
    return f"{where}: {text}" if where else text


def _walk(
    loc: tuple[int | str, ...], root: type[BaseModel], tree: Mapping[str, Any]
) -> tuple[tuple[str, ...], type[BaseModel] | None, bool]:
    """Path of a fault without the variants' names that pydantic puts in, and its section's class.

    The class is that of the section the fault is in: of the value where that is a section itself.
    Last: whether the field at the path may be a variant of the user's own.
    """
    path: list[str] = []
    section: type[BaseModel] | None = root
    is_own = False
    value: Any = tree
    rest = list(loc)
    while rest:
        key = str(rest.pop(0))
        path.append(key)
        value = value.get(key, _MISSING) if isinstance(value, dict) else _MISSING
        is_own = section is not None and is_open(section.model_fields.get(key))
        tag, child = discriminator(section, key, value)
        if tag is not None and rest and isinstance(value, dict) and rest[0] == value.get(tag):
            rest.pop(0)
        section = child if child is not None or rest else section
    return tuple(path), section, is_own


def _suggestion(
    path: tuple[str, ...], section: type[BaseModel] | None, root: type[BaseModel]
) -> str:
    """Where the key may have been meant to go: a like name in its section, or its own elsewhere."""
    *parents, key = path
    here = [] if section is None else list(section.model_fields)
    everywhere = list(fields(root))
    if path in [p for p, _ in everywhere]:
        return f"; it belongs to another `name` of {'.'.join(parents)}"
    if key in [".".join(p) for p, _ in everywhere]:
        return (
            "; in a file should be nested: "
            + ": {".join(key.split("."))
            + ": ..."
            + ("}" * key.count("."))
        )
    if close := difflib.get_close_matches(key, here, n=1, cutoff=0.6):
        return f"; did you mean {'.'.join([*parents, close[0]])}?"
    for cutoff in (1.0, 0.8):
        names = difflib.get_close_matches(key, [p[-1] for p, _ in everywhere], 3, cutoff)
        if paths := list(dict.fromkeys(".".join(p) for p, _ in everywhere if p[-1] in names)):
            return f"; did you mean {' or '.join(paths[:3])}?"
    return f"; should be one of {', '.join(here)}" if here else ""


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
