"""Writes a configuration as YAML, with or without every field's description beside it."""

from __future__ import annotations

import json
import textwrap
import typing
from typing import TYPE_CHECKING, Any

from mupo_ray.settings.variants import discriminator, section_types

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

_WIDTH = 100


def to_yaml(config: BaseModel) -> str:
    """The values of a configuration, in the order of the tree; it is read back as it was."""
    return "\n".join(_section(json.loads(config.model_dump_json()), type(config), 0, False)) + "\n"


def base_yaml(root: type[BaseModel]) -> str:
    """`configs/base.yaml`: every field with its description and default, variants as comments."""
    head = [
        "# Every field with its default. A config file needs only the fields that it changes.",
        "# Written by tools/write_base_config.py from mupo_ray/config.py.",
        "",
    ]
    body = _section(json.loads(root().model_dump_json()), root, 0, True)
    return "\n".join(head + body) + "\n"


def _section(
    values: dict[str, Any], model: type[BaseModel], depth: int, explained: bool
) -> list[str]:
    lines: list[str] = []
    pad = "  " * depth
    for key, value in values.items():
        field = model.model_fields[key]
        if explained:
            if depth == 0 and lines:
                lines.append("")
            lines += _comment(_explanation(field), pad)
        tag, child = discriminator(model, key, value)
        if isinstance(value, dict) and child is not None:
            lines.append(f"{pad}{key}:")
            lines += _section(value, child, depth + 1, explained)
        else:
            lines.append(f"{pad}{key}: {_scalar(value)}")
        if explained:
            current = child if isinstance(value, dict) else None
            lines += _others(key, field, current, tag, depth)
    return lines


def _explanation(field: FieldInfo) -> str:
    """The field's description, and its values where they are a choice."""
    text = field.description or ""
    choices = typing.get_args(field.annotation)
    if typing.get_origin(field.annotation) is typing.Literal and len(choices) > 1:
        text += f" One of: {', '.join(map(str, choices))}."
    return text


def _others(
    key: str, field: FieldInfo, current: type[BaseModel] | None, tag: str | None, depth: int
) -> list[str]:
    """The variants of a section that are not the default, commented out."""
    lines = []
    pad = "  " * depth
    for section in section_types(field.annotation):
        if section is current:
            continue
        values = json.loads(section().model_dump_json())
        title = (
            f"Instead, {values[tag]}: {section.__doc__}"
            if tag is not None
            else f"Instead of null: {section.__doc__}"
        )
        lines += _comment(title, pad)
        body = [f"{key}:", *_section(values, section, 1, True)]
        lines += [f"{pad}# {line}" for line in body]
    return lines


def _comment(text: str, pad: str) -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()),
        _WIDTH,
        initial_indent=f"{pad}# ",
        subsequent_indent=f"{pad}# ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _scalar(value: Any) -> str:
    """One line of YAML; JSON is YAML, and quotes only where plain text would not do."""
    if isinstance(value, str) and _is_plain(value):
        return value
    return json.dumps(value)


def _is_plain(text: str) -> bool:
    reserved = {"true", "false", "null", "~"}
    return (
        text[:1].isalpha()
        and all(c.isascii() and (c.isalnum() or c in "_-./") for c in text)
        and text.lower() not in reserved
    )
