"""Turns pydantic's findings into one clear line each: where, what, got, should be."""

from __future__ import annotations

import difflib
import re
import types
import typing
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from mupo_ray.config import Config

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic import ValidationError
    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails

_MISSING = object()


def section_types(annotation: Any) -> list[type[BaseModel]]:
    """The section classes that a field's type allows, in order."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType, typing.Annotated):
        return [t for part in typing.get_args(annotation) for t in section_types(part)]
    return []


def discriminator(
    model: type[BaseModel] | None, key: str, *values: Any
) -> tuple[str | None, type[BaseModel] | None]:
    """The field that names a variant, and the section class that the given values mean.

    Args:
        model: class of the section that holds `key`; None where unknown.
        key: name of the field.
        values: plain values of it, most important first; the first with a variant's name decides.

    Returns:
        (tag, section): tag is None where the field has no variants, section where it is no section
        or its variant is unknown.
    """
    field: FieldInfo | None = None if model is None else model.model_fields.get(key)
    if field is None:
        return None, None
    sections = section_types(field.annotation)
    tag = field.discriminator
    if not isinstance(tag, str):
        return None, sections[0] if sections else None
    for value in values:
        if isinstance(value, dict) and tag in value:
            names = {s.model_fields[tag].default: s for s in sections}
            name = value[tag]
            return tag, names.get(name) if isinstance(name, str) else None
    return tag, None


def describe(
    error: ValidationError, tree: Mapping[str, Any], sources: Mapping[tuple[str, ...], str]
) -> list[str]:
    """One line for each fault.

    Args:
        error: what pydantic found.
        tree: the plain values that were checked.
        sources: path -> file and line, or override, that set it.

    Returns:
        Lines like `my.yaml:7: train.num_step: unknown key; did you mean train.num_steps?`.
    """
    return [_line(fault, tree, sources) for fault in error.errors(include_url=False)]


def _line(
    fault: ErrorDetails, tree: Mapping[str, Any], sources: Mapping[tuple[str, ...], str]
) -> str:
    kind = fault["type"]
    path, section = _walk(fault["loc"], tree)
    if kind == "union_tag_invalid":
        path = (*path, "name")
    source = next((sources[path[:i]] for i in range(len(path), 0, -1) if path[:i] in sources), None)
    if source is not None and source.startswith(f"override {'.'.join(path)}="):
        where = source
    else:
        where = ": ".join(part for part in (source, ".".join(path)) if part)
    if kind == "extra_forbidden":
        text = f"unknown key{_suggestion(path, section)}"
    elif kind == "union_tag_invalid":
        context = fault["ctx"]
        text = f"got {context['tag']!r}, should be one of {context['expected_tags']}"
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
    loc: tuple[int | str, ...], tree: Mapping[str, Any]
) -> tuple[tuple[str, ...], type[BaseModel] | None]:
    """Path of a fault without the variants' names that pydantic puts in, and its section's class.

    The class is that of the section the fault is in: of the value where that is a section itself.
    """
    path: list[str] = []
    section: type[BaseModel] | None = Config
    value: Any = tree
    rest = list(loc)
    while rest:
        key = str(rest.pop(0))
        path.append(key)
        value = value.get(key, _MISSING) if isinstance(value, dict) else _MISSING
        tag, child = discriminator(section, key, value)
        if tag is not None and rest and isinstance(value, dict) and rest[0] == value.get(tag):
            rest.pop(0)
        section = child if child is not None or rest else section
    return tuple(path), section


def _suggestion(path: tuple[str, ...], section: type[BaseModel] | None) -> str:
    """Where the key may have been meant to go: a like name in its section, or its own elsewhere."""
    *parents, key = path
    here = [] if section is None else list(section.model_fields)
    everywhere = list(fields(Config))
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


def fields(
    model: type[BaseModel], at: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], FieldInfo]]:
    """Every field of a section, of those below it, and of all their variants."""
    for name, field in model.model_fields.items():
        yield (*at, name), field
        for section in section_types(field.annotation):
            yield from fields(section, (*at, name))


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
