"""Which files a source stands for: a file, a folder, a copy of a data set, or a Hugging Face id.

rows.jsonl            one file
"shards/*.parquet"    a glob
folder                a folder of files, or what `Dataset.save_to_disk` wrote
folder@test           one split of a folder that holds several
owner/name@test       a split from the Hugging Face hub, or `owner/name:config@test`
"""

from __future__ import annotations

import glob
import json
import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from mupo_ray.errors import DataError


class FileKind(StrEnum):
    """How a file holds its rows."""

    PARQUET = "parquet"
    ARROW = "arrow"
    """An Arrow stream, as the `datasets` library keeps on disk."""
    JSONL = "jsonl"
    JSON = "json"
    TSV = "tsv"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFiles:
    """Files of one kind, in the order of their rows."""

    kind: FileKind
    paths: tuple[Path, ...]


_SUFFIXES = {
    ".parquet": FileKind.PARQUET,
    ".arrow": FileKind.ARROW,
    ".jsonl": FileKind.JSONL,
    ".ndjson": FileKind.JSONL,
    ".json": FileKind.JSON,
    ".tsv": FileKind.TSV,
}
# Files that describe a data set and hold no row of it.
_ABOUT = {"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"}
_ABOUT |= {"report.json", "config.json"}
_SPLITS = {"train", "test", "testmini", "validation", "valid", "val", "dev", "eval"}
# `test-00001-of-00002-6a611c71596db30f`: the name of a shard on the hub.
_SHARD = re.compile(r"(?P<split>.+?)-\d{5}-of-\d{5}(?:-[0-9a-f]+)?")
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(?::[\w.-]+)?")
_SPLIT = re.compile(r"[\w.-]+")


def find_source_files(spec: str) -> SourceFiles:
    """Find the files of a source.

    Args:
        spec: as at the top of this module.

    Raises:
        DataError: nothing there, several splits and none chosen, or a hub that cannot be reached.
    """
    path = Path(spec).expanduser()
    if path.is_file():
        return SourceFiles(kind=_kind(path), paths=(path,))
    if path.is_dir():
        return _in_folder(path, None)
    base, at, split = spec.rpartition("@")
    if at and Path(base).expanduser().is_dir():
        return _in_folder(Path(base).expanduser(), split)
    if glob.has_magic(spec):
        found = [Path(p) for p in sorted(glob.glob(str(path), recursive=True))]  # noqa: PTH207
        if not found:
            raise DataError(f"source {spec!r}: the glob matches no file (looked from {Path.cwd()})")
        return _of_one_kind(found, spec)
    if at and _HUB_ID.fullmatch(base) and _SPLIT.fullmatch(split):
        return _from_hub(base, split)
    if not at and _HUB_ID.fullmatch(spec) and not path.suffix:
        raise DataError(
            f"source {spec!r} is no file or folder here (looked from {Path.cwd()}); if it is a "
            f"Hugging Face id, name the split: {spec}@train"
        )
    raise DataError(
        f"source {spec!r} does not exist (looked from {Path.cwd()}); expected a file, a folder, a "
        "glob, or a Hugging Face id with its split, owner/name@train"
    )


def _kind(path: Path) -> FileKind:
    kind = _SUFFIXES.get(path.suffix.lower())
    if kind is None:
        raise DataError(
            f"source {path}: unknown kind of file {path.suffix!r}, expected one of "
            f"{', '.join(_SUFFIXES)}"
        )
    return kind


def _of_one_kind(paths: list[Path], spec: str) -> SourceFiles:
    kinds = {_kind(path) for path in paths}
    if len(kinds) > 1:
        raise DataError(
            f"source {spec} holds files of several kinds ({', '.join(sorted(kinds))}); name the "
            "file, or those of one kind by a glob"
        )
    return SourceFiles(kind=kinds.pop(), paths=tuple(paths))


def _in_folder(folder: Path, split: str | None) -> SourceFiles:
    if (folder / "dataset_dict.json").is_file():
        splits: list[str] = _described(folder / "dataset_dict.json").get("splits", [])
        if split is None and len(splits) == 1:
            split = splits[0]
        if split not in splits:
            raise DataError(_choose(folder, splits, split))
        return _in_folder(folder / str(split), None)
    if (folder / "state.json").is_file():
        files = _described(folder / "state.json").get("_data_files", [])
        paths = tuple(folder / file["filename"] for file in files)
        if not paths:
            raise DataError(f"data set {folder} lists no data file in its state.json")
        return SourceFiles(kind=FileKind.ARROW, paths=paths)
    names = [p.relative_to(folder) for p in sorted(folder.rglob("*")) if p.is_file()]
    names = [n for n in names if not any(part.startswith(".") for part in n.parts)]
    names = [n for n in names if n.suffix.lower() in _SUFFIXES and n.name not in _ABOUT]
    if split is not None:
        chosen = [n for n in names if split in (_split_of(n), n.stem, *n.parent.parts)]
    else:
        chosen = names
        if len(found := _splits_of(names)) > 1:
            raise DataError(_choose(folder, found, None))
    # Metadata in JSON often lies beside the rows; it counts where nothing else does.
    rows = [n for n in chosen if _kind(n) is not FileKind.JSON] or chosen
    if not rows:
        has = ", ".join(_splits_of(names)) or "none"
        raise DataError(
            f"folder {folder} holds no {', '.join(_SUFFIXES)} file"
            + (f" of a split {split!r}; it has {has}" if split else "")
        )
    return _of_one_kind([folder / n for n in rows], str(folder))


def _splits_of(names: list[Path]) -> list[str]:
    return sorted({split for name in names if (split := _split_of(name)) is not None})


def _split_of(name: Path) -> str | None:
    if shard := _SHARD.fullmatch(name.stem):
        return shard["split"]
    if name.stem in _SPLITS:
        return name.stem
    return next((part for part in name.parent.parts if part in _SPLITS), None)


def _choose(folder: Path, splits: list[str], split: str | None) -> str:
    got = "no split was chosen" if split is None else f"there is no split {split!r}"
    return f"data set {folder} has the splits {', '.join(splits)} and {got}; give {folder}@SPLIT"


def _described(file: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as err:
        raise DataError(f"cannot read {file}: {err}") from err
    return found


def _from_hub(name: str, split: str) -> SourceFiles:
    """Download a split, or find it in the hub's cache (datasets 3 to 5 keep it as Arrow files)."""
    try:
        import datasets
    except ImportError:
        raise DataError(
            f"source {name}@{split} is a Hugging Face id, which needs the package datasets: "
            'pip install "mupo_ray[hub]"; or give a folder with a copy of the data set'
        ) from None
    repository, _, config = name.partition(":")
    try:
        loaded = datasets.load_dataset(repository, config or None, split=split)
        paths = tuple(Path(file["filename"]) for file in loaded.cache_files)
    except Exception as err:  # The library raises its own, its HTTP client's and plain ones.
        cause = next(iter(str(err).splitlines()), "") or type(err).__name__
        raise DataError(
            f"cannot load {name}@{split} from the Hugging Face hub: {type(err).__name__}: {cause}. "
            "Where there is no network, fetch it elsewhere with `hf download --repo-type dataset "
            f"{repository} --local-dir FOLDER` and give FOLDER@{split}"
        ) from err
    return SourceFiles(kind=FileKind.ARROW, paths=paths)
