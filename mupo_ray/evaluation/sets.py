"""Evaluation sets: what a user names, as a table of the layout that training reads.

    [NAME[:MAPPING]=]SOURCE --parse_set--> SetSpec --open_set--> EvalSource: table, fingerprint
                                                       |
                    Parquet of our layout: as it is    |    anything else: prepared below the
                                                       |    evaluation's folder, prepare/prepare.py

So a set is read by one way, the way of training, whatever it came as.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from mupo_ray.data.fingerprint import fingerprint_of
from mupo_ray.data.table import open_table
from mupo_ray.errors import ConfigError, DataError
from mupo_ray.prepare.column_maps import MAPPINGS
from mupo_ray.prepare.prepare import PrepareConfig, prepare
from mupo_ray.prepare.sources import FileKind, SourceFiles, find_source_files

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mupo_ray.data.table import PromptTable

logger = logging.getLogger(__name__)

DATA_FOLDER = "data"
"""Folder of a prepared set below the set's own."""

_SPEC = re.compile(r"(?P<name>[A-Za-z0-9_.-]+)(?::(?P<mapping>[A-Za-z0-9_]+))?=(?P<source>.+)")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class SetSpec:
    """A set as a user names it."""

    name: str
    """In results and as a folder."""
    mapping: str | None
    """Name of a ready mapping of columns; None leaves it to the file's layout."""
    source: str
    """As `find_source_files` takes it."""


@dataclass(frozen=True, kw_only=True)
class EvalSource:
    """A set that can be read."""

    spec: SetSpec
    table: PromptTable
    fingerprint: str
    """Of the table's files; pictures in files of their own are named in it by their hash."""
    tsv: str | None = None
    """The VLMEvalKit table that it was prepared from, if it was."""
    dropped_rows: frozenset[int] = frozenset()
    """Rows of that table which could not be asked and are not in `table`."""


def parse_set(text: str) -> SetSpec:
    """Read `[NAME[:MAPPING]=]SOURCE`; a name that is a mapping's chooses that mapping.

    Raises:
        ConfigError: an unknown mapping, or no source.
    """
    parts = _SPEC.fullmatch(text)
    if parts is None:
        return SetSpec(name=_name_of(text), mapping=None, source=text)
    name, mapping = parts["name"], parts["mapping"]
    if mapping is None and name in MAPPINGS:
        mapping = name
    if mapping is not None and mapping not in MAPPINGS:
        raise ConfigError(
            f"--set {text}: mapping {mapping!r} is unknown; should be one of {', '.join(MAPPINGS)}"
        )
    return SetSpec(name=name, mapping=mapping, source=parts["source"])


def parse_sets(texts: Sequence[str]) -> list[SetSpec]:
    """Read several.

    Raises:
        ConfigError: as `parse_set`, or two of one name.
    """
    specs = [parse_set(text) for text in texts]
    names = [spec.name for spec in specs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(
            f"two sets are named {', '.join(twice)}; give each its own, --set NAME=SOURCE"
        )
    return specs


def open_set(spec: SetSpec, folder: Path) -> EvalSource:
    """Open a set, prepared first where it is not of training's layout.

    Args:
        spec: what to open.
        folder: the set's folder in the evaluation's; what is prepared lies below.

    Raises:
        DataError: no such source, columns other than the mapping expects, or no row to ask.
    """
    files = find_source_files(spec.source)
    if spec.mapping is None and _is_ours(files, spec.source):
        table = open_table(spec.source)
        return EvalSource(
            spec=spec, table=table, fingerprint=fingerprint_of(map(Path, table.files))
        )
    is_tsv = files.kind is FileKind.TSV
    data = folder / DATA_FOLDER
    try:
        report = prepare(
            PrepareConfig(
                source=spec.source,
                out=data,
                mapping=spec.mapping or ("vlmevalkit" if is_tsv else "generic"),
                overwrites=True,
            )
        )
    except DataError as err:
        raise DataError(f"set {spec.name}: {spec.source}: {err}") from err
    if report.rows_dropped:
        logger.warning(
            "set %s: %d of %d rows cannot be asked:\n%s",
            *(spec.name, report.rows_dropped, report.rows_in, report.first_messages()),
        )
    table = open_table(data)
    return EvalSource(
        spec=spec,
        table=table,
        fingerprint=fingerprint_of(map(Path, table.files)),
        tsv=spec.source if is_tsv else None,
        dropped_rows=frozenset(row for rows in report.dropped_rows.values() for row in rows),
    )


def _is_ours(files: SourceFiles, source: str) -> bool:
    """Whether training could read it as it is."""
    path = Path(source).expanduser()
    if files.kind is not FileKind.PARQUET or (not path.exists() and "@" in source):
        return False
    if path.is_dir() and any(file.parent != path for file in files.paths):
        return False
    return {"problem", "answer"} <= set(pq.read_schema(files.paths[0]).names)


def _name_of(source: str) -> str:
    base, at, split = source.rpartition("@")
    path = Path(base if at else source)
    if path.suffix.lower() in (".parquet", ".tsv", ".jsonl", ".json", ".arrow", ".ndjson"):
        path = path.with_suffix("")
    return _NOT_IN_NAMES.sub("-", path.name + (f"-{split}" if at else "")).strip("-") or "set"
