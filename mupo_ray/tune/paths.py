"""What a dotted path of the configuration allows, read from the config tree's own fields."""

from __future__ import annotations

import difflib
import json
from typing import TYPE_CHECKING, Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from mupo_ray.config import Config
from mupo_ray.errors import ConfigError
from mupo_ray.settings.load import leaves
from mupo_ray.settings.variants import fields, section_types

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic.fields import FieldInfo


def values_of(config: Config) -> dict[str, Any]:
    """Dotted path -> value, of a whole configuration."""
    return leaves(json.loads(config.model_dump_json()))


def allowed_at(path: str, base: Config, names: Mapping[str, Sequence[Any]]) -> list[FieldInfo]:
    """The fields that a path may mean.

    Args:
        path: `section.field`.
        base: decides the variant of a section.
        names: dotted path of a variant's name -> the names it may take in the sweep.

    Raises:
        ConfigError: there is no such field; the message names what may have been meant.
    """
    models: list[type[BaseModel]] = [Config]
    values: Any = json.loads(base.model_dump_json())
    *parents, last = path.split(".")
    at = ""
    for key in parents:
        at = f"{at}.{key}" if at else key
        values = values.get(key) if isinstance(values, dict) else None
        found = [m.model_fields[key] for m in models if key in m.model_fields]
        models = [s for f in found for s in _variants(f, values, names.get(f"{at}.name"))]
    found = [m.model_fields[last] for m in models if last in m.model_fields]
    if not found:
        raise ConfigError(f"no such field{_meant(path, at, values)}")
    if any(section_types(f.annotation) for f in found):
        raise ConfigError("is a section; should be one of its fields")
    return found


def check_value(found: Sequence[FieldInfo], value: Any) -> str | None:
    """What a field that takes no such value says; None where one of them takes it."""
    said = None
    for field in found:
        kind: Any = field.annotation
        kind = Annotated[kind, *field.metadata] if field.metadata else kind
        adapter = TypeAdapter[Any](kind, config=ConfigDict(strict=True, allow_inf_nan=False))
        try:
            adapter.validate_json(json.dumps(value))
            return None
        except ValidationError as err:
            said = err.errors(include_url=False)[0]["msg"].removeprefix("Input ")
    return said


def _variants(field: FieldInfo, value: Any, names: Sequence[Any] | None) -> list[type[BaseModel]]:
    sections = section_types(field.annotation)
    if not isinstance(field.discriminator, str):
        return sections
    given = value.get(field.discriminator) if isinstance(value, dict) else None
    wanted = list(names) if names is not None else [given]
    tags = {s: get_args(s.model_fields[field.discriminator].annotation) for s in sections}
    return [s for s in sections if set(tags[s]) & set(wanted)]


def _meant(path: str, parent: str, values: Any) -> str:
    everywhere = [".".join(p) for p, _ in fields(Config)]
    if path in everywhere:
        name = values.get("name") if isinstance(values, dict) else None
        return f" while {parent}.name is {name}; it belongs to another name of {parent}"
    last = path.rpartition(".")[2]
    close = difflib.get_close_matches(path, everywhere, n=1, cutoff=0.75)
    close = close or [p for p in everywhere if p.rpartition(".")[2] == last][:2]
    close = close or difflib.get_close_matches(path, everywhere, n=1)
    return f"; did you mean {' or '.join(close)}?" if close else ""
