"""Sections that come in variants: which section class a field's value means.

A variant is told by its `name`. A field may also be open to variants from outside the package, as
`name: module:Class`.
"""

from __future__ import annotations

import difflib
import importlib
import json
import types
import typing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from pydantic_core import PydanticCustomError, core_schema

from mupo_ray.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pydantic import GetCoreSchemaHandler
    from pydantic.fields import FieldInfo

UNKNOWN_MODULE = "unknown_module"
"""Type of pydantic's error where `module:Class` leads nowhere."""


@dataclass(frozen=True, slots=True)
class OpenTo:
    """Annotates a union of sections: a value whose name reads `module:Class` is another one."""

    load: Callable[[str], type[BaseModel]]
    """The section class of such a name; raises ConfigError."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        """Check values against the class they name; write each with all fields of its own."""

        def check(
            value: Any,
            inner: core_schema.ValidatorFunctionWrapHandler,
            info: core_schema.ValidationInfo,
        ) -> Any:
            name = value.get("name") if isinstance(value, dict) else getattr(value, "name", None)
            if not isinstance(name, str) or ":" not in name:
                return inner(value)
            try:
                section = self.load(name)
            except ConfigError as err:
                raise PydanticCustomError(UNKNOWN_MODULE, "{reason}", {"reason": str(err)}) from err
            if isinstance(value, section):
                return value
            if info.mode == "json":
                return section.model_validate_json(json.dumps(value))
            return section.model_validate(value)

        return core_schema.with_info_wrap_validator_function(
            check,
            handler(source),
            serialization=core_schema.wrap_serializer_function_ser_schema(
                lambda value, _: value, schema=core_schema.any_schema()
            ),
        )


def load_class(name: str, base: type[Any]) -> type[Any]:
    """The class that `module:Class` names.

    Raises:
        ConfigError: it cannot be imported, or is no subclass of `base`.
    """
    module_name, _, class_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise ConfigError(
            f"cannot import module {module_name} ({type(error).__name__}: {error}); it should be "
            "installed or in a folder on PYTHONPATH, on every node"
        ) from error
    loaded = getattr(module, class_name, None)
    if not isinstance(loaded, type) or not issubclass(loaded, base):
        got = "no such name" if loaded is None else f"{loaded!r}"
        classes = [v for v in vars(module).values() if isinstance(v, type)]
        own = [kind for kind in classes if kind.__module__ == module_name]
        fitting = [kind.__name__ for kind in own if issubclass(kind, base)]
        near = difflib.get_close_matches(class_name, fitting, n=1)
        right = (
            f"did you mean {module_name}:{near[0]}?"
            if near
            else f"should be a subclass of {base.__module__}.{base.__name__}"
        )
        raise ConfigError(f"module {module_name} has {got} for {class_name}; {right}")
    return loaded


def section_types(annotation: Any) -> list[type[BaseModel]]:
    """The section classes that a field's type allows, in order."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType, typing.Annotated):
        return [t for part in typing.get_args(annotation) for t in section_types(part)]
    return []


def variant(field: FieldInfo, name: Any) -> type[BaseModel] | None:
    """The section class of a field's variant; None where there is none of that name."""
    tag = field.discriminator
    if not isinstance(tag, str) or not isinstance(name, str):
        return None
    for section in section_types(field.annotation):
        if section.model_fields[tag].default == name:
            return section
    for mark in field.metadata:
        if isinstance(mark, OpenTo) and ":" in name:
            try:
                return mark.load(name)
            except ConfigError:
                return None
    return None


def is_open(field: FieldInfo | None) -> bool:
    """Whether variants from outside the package are allowed."""
    return field is not None and any(isinstance(mark, OpenTo) for mark in field.metadata)


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
            return tag, variant(field, value[tag])
    return tag, None


def fields(
    model: type[BaseModel], at: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], FieldInfo]]:
    """Every field of a section, of those below it, and of all their variants."""
    for name, field in model.model_fields.items():
        yield (*at, name), field
        for section in section_types(field.annotation):
            yield from fields(section, (*at, name))
