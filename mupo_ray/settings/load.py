"""From YAML files and overrides to a checked tree of sections.

    field defaults < config files, left to right < section.field=value
                                |
         one plain tree, each value with the place it came from
                                |
         an instance of the root class, or ConfigError with one line a fault

YAML is read by the rules of YAML 1.2: `1e-6` is a number, `no` and `on` are text, `12:30` is text.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import yaml
from pydantic import BaseModel, ValidationError

from mupo_ray.errors import ConfigError
from mupo_ray.settings.faults import Sources, describe
from mupo_ray.settings.variants import discriminator

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Tree = dict[str, Any]
Root = TypeVar("Root", bound=BaseModel)

RUN_FILE = "run.json"
"""Name of the record in a run's folder; given as a file, it is the configuration in it."""

# Deeper nesting than any configuration has; a YAML alias that contains itself reaches it.
_MAX_DEPTH = 16


class _Loader(yaml.SafeLoader):
    """SafeLoader that resolves scalars as YAML 1.2's core schema does."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}


for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", "~nN"),
    ("int", r"[-+]?[0-9][0-9_]*", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
):
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), [*_first]
    )
_Loader.yaml_implicit_resolvers.setdefault("", []).append(
    ("tag:yaml.org,2002:null", re.compile("^$"))
)


def _decimal(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    """PyYAML's own constructor would read 010 as octal 8."""
    return int(loader.construct_scalar(node))


_Loader.add_constructor("tag:yaml.org,2002:int", _decimal)


@dataclass(frozen=True, slots=True)
class _Layer:
    """One file's or all overrides' values, and where each of them stands."""

    values: Tree
    sources: Sources


def load(base: Root, files: Sequence[Path | str], overrides: Sequence[str]) -> Root:
    """Join a base, files and overrides, and check the result.

    Args:
        base: what stands where neither of the others says anything; its class is the tree's.
        files: YAML files or `run.json` of a run, later ones win. Relative paths resolve against the
            working directory.
        overrides: `section.field=value`, the value in YAML; all win over files.

    Raises:
        ConfigError: a file is missing or not YAML, or a key or value is wrong; one line a fault.
    """
    root = type(base)
    tree: Tree = json.loads(base.model_dump_json())
    sources: Sources = {}
    layers = [_Layer(*read_yaml(Path(file))) for file in files]
    if overrides:
        layers.append(_read_overrides(overrides))
    for layer in layers:
        _merge(tree, layer.values, root)
        sources.update(layer.sources)
    return check(root, tree, sources)


def check(root: type[Root], tree: Tree, sources: Sources) -> Root:
    """The tree's values as an instance of its class.

    Args:
        root: class of the tree.
        tree: plain values, as JSON has them.
        sources: path -> file and line, or override, that set a value.

    Raises:
        ConfigError: a key or value is wrong; one line a fault.
    """
    try:
        return root.model_validate_json(json.dumps(tree))
    except ValidationError as err:
        raise ConfigError("\n".join(describe(err, root, tree, sources))) from None


def leaves(tree: Any, path: str = "") -> dict[str, Any]:
    """Dotted path -> value, of a configuration as plain values."""
    if isinstance(tree, dict):
        return {
            dotted: leaf
            for key, value in tree.items()
            for dotted, leaf in leaves(value, f"{path}.{key}" if path else key).items()
        }
    return {path: tree}


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The first differing values by dotted path, then and now; empty where there are none."""
    changed = [k for k in {**before, **now} if before.get(k) != now.get(k)]
    told = [f"{k}: {before.get(k)!r} then, {now.get(k)!r} now" for k in changed[:4]]
    return ", ".join(told) + (", ..." if len(changed) > len(told) else "")


def read_yaml(path: Path) -> tuple[Tree, Sources]:
    """The values of a YAML file, and the file and line of each key.

    The record of a run counts as the configuration in it, so that a run can be had again.

    Raises:
        ConfigError: no such file, or not one mapping in YAML.
    """
    try:
        text = path.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as err:
        reason = (
            f"no such file below {Path.cwd()}" if isinstance(err, FileNotFoundError) else str(err)
        )
        raise ConfigError(f"config file {path}: {reason}; should be a readable YAML file") from None
    values, lines = _parse(text, str(path))
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise ConfigError(f"config file {path}: got {values!r}, should hold `section: ...` lines")
    if path.name == RUN_FILE and isinstance(values.get("config"), dict):
        lines = {at[1:]: line for at, line in lines.items() if at[0] == "config" and len(at) > 1}
        values = values["config"]
    return values, {at: f"{path}:{line}" for at, line in lines.items()}


def _read_overrides(overrides: Sequence[str]) -> _Layer:
    values: Tree = {}
    sources: Sources = {}
    for text in overrides:
        key, equals, value = text.partition("=")
        path = tuple(key.split("."))
        if not equals or not all(path):
            raise ConfigError(f"override {text!r}: should read section.field=value")
        parsed, lines = _parse(value, f"override {text}")
        layer: Tree = {path[-1]: parsed}
        for part in reversed(path[:-1]):
            layer = {part: layer}
        # One layer for all of them, so that their order does not decide what a new `name` drops.
        _merge(values, layer, None)
        sources.update({path[:i]: f"override {text}" for i in range(1, len(path) + 1)})
        sources.update({(*path, *at): f"override {text}" for at in lines})
    return _Layer(values, sources)


def _parse(text: str, where: str) -> tuple[Any, dict[tuple[str, ...], int]]:
    """The value of a YAML text, and the line of each key in it."""
    lines: dict[tuple[str, ...], int] = {}
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        return (None if node is None else _build(loader, node, (), lines, where)), lines
    except yaml.MarkedYAMLError as err:
        line = f":{err.problem_mark.line + 1}" if err.problem_mark else ""
        raise ConfigError(f"{where}{line}: not YAML: {err.problem}") from None
    except (yaml.YAMLError, ValueError) as err:
        raise ConfigError(f"{where}: not YAML: {' '.join(str(err).split())}") from None
    finally:
        loader.dispose()


def _build(
    loader: _Loader,
    node: yaml.Node,
    at: tuple[str, ...],
    lines: dict[tuple[str, ...], int],
    where: str,
) -> Any:
    if len(at) > _MAX_DEPTH:
        raise ConfigError(f"{where}: {'.'.join(at[:4])}... is nested too deep")
    if isinstance(node, yaml.MappingNode):
        values: Tree = {}
        for key_node, value_node in node.value:
            key, line = key_node.value, key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise ConfigError(f"{where}:{line}: a key should be text")
            if key in values:
                first = lines[(*at, key)]
                raise ConfigError(
                    f"{where}:{line}: {'.'.join((*at, key))}: given twice, first on line {first}; "
                    "should be given once"
                )
            lines[(*at, key)] = line
            values[key] = _build(loader, value_node, (*at, key), lines, where)
        return values
    if isinstance(node, yaml.SequenceNode):
        return [
            _build(loader, item, (*at, str(i)), lines, where) for i, item in enumerate(node.value)
        ]
    return loader.construct_object(node)


def _merge(into: Tree, layer: Mapping[str, Any], model: type[BaseModel] | None) -> None:
    """Lay `layer` over `into`, mapping by mapping; a variant that changes its name starts anew."""
    for key, value in layer.items():
        old = into.get(key)
        tag, child = discriminator(model, key, value, old)
        if isinstance(value, dict) and isinstance(old, dict):
            if tag is not None and value.get(tag, old.get(tag)) != old.get(tag):
                into[key] = {}
            _merge(cast("Tree", into[key]), value, child)
        else:
            into[key] = value
