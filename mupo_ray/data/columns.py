"""Which column means what, and a row's cells as problem, answer, options and pictures.

A name with a dot reaches into an object: `metadata.source` is the cell `source` of the column
`metadata`. Of several names for one thing the first that has a value counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from decimal import Decimal
from typing import Any

from mupo_ray.data.options import parse_options, shows_options
from mupo_ray.data.picture_cells import image_refs, refuse_hidden_picture
from mupo_ray.data.schema import DropReason, ImageRef, RowError
from mupo_ray.data.source_text import JsonFloat, literal
from mupo_ray.errors import DataError

Cells = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnMap:
    """Names of the columns that hold each thing."""

    problem: tuple[str, ...] = ("problem", "question")
    answer: tuple[str, ...] = ("answer", "ground_truth", "gold")
    images: tuple[str, ...] = ("images", "image", "image_path", "file_name")
    options: tuple[str, ...] = ("options", "choices")
    """One column with all options, or one column an option, each named by its letter."""
    category: tuple[str, ...] = ("category",)
    source: tuple[str, ...] = ("source",)
    id: tuple[str, ...] = ("id", "index", "qid", "pid", "ID", "_key")
    """What names the row in reports."""
    hint: tuple[str, ...] = ("hint",)
    """Text that is put before the question."""
    join_images: bool = False
    """Whether the image columns hold one picture each, rather than being names for the same."""
    show_options: bool = True
    """Whether options are put behind a question that does not name them itself."""

    def used(self, columns: Sequence[str]) -> dict[str, list[str]]:
        """Thing -> those of its columns that a source has, for reports."""
        named = {name: [c for c in getattr(self, name) if _has(c, columns)] for name in _FIELDS}
        return {name: found for name, found in named.items() if found}


MAPPINGS: Mapping[str, ColumnMap] = {
    "generic": ColumnMap(),
    "virl39k": ColumnMap(problem=("question",), images=("image",), options=(), id=("qid",)),
    # The question is posed without its choices; the answer is the value, not the letter.
    "geometry3k": ColumnMap(
        problem=("problem",), images=("images",), options=("choices",), show_options=False
    ),
    "mathvista": ColumnMap(
        problem=("question",),
        images=("decoded_image",),
        options=("choices",),
        category=("metadata.category",),
        source=("metadata.source",),
        id=("pid",),
    ),
    # Its questions name their choices themselves.
    "mathverse": ColumnMap(
        problem=("question",),
        images=("image",),
        options=(),
        category=("metadata.subject",),
        source=("metadata.source",),
        id=("sample_index",),
    ),
    "wemath": ColumnMap(
        problem=("question",),
        images=("image_path",),
        options=("option",),
        category=("knowledge concept",),
        id=("ID",),
    ),
    "mmstar": ColumnMap(
        problem=("question",),
        images=("image",),
        options=(),
        source=("meta_info.source",),
        id=("index",),
    ),
    "vlmevalkit": ColumnMap(
        problem=("question",),
        images=("image", "image_path"),
        options=tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
        id=("index",),
    ),
}
"""Ready mappings by name."""

_LETTERS = tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_SAME_PICTURE = ("images", "image")
_FIELDS = tuple(f.name for f in fields(ColumnMap) if f.name not in ("join_images", "show_options"))
_NUMBERED_MARK = re.compile(r"<image (\d+)>")


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedRow:
    """A row whose columns have a meaning; pictures are not read yet."""

    row_id: str
    problem: str
    """What the model is asked: hint, question and options."""
    question: str
    """The question alone."""
    answer: str
    images: tuple[ImageRef, ...]
    options: dict[str, str]
    category: str | None
    source: str | None
    passed: dict[str, str]
    """Columns without a meaning here."""


def resolve_columns(
    mapping: str,
    overrides: Sequence[str],
    columns: Sequence[str],
    *,
    required: Sequence[str] = ("problem", "answer"),
) -> ColumnMap:
    """A ready mapping with a user's own words on top, checked against a source's columns.

    Args:
        mapping: a name of `MAPPINGS`.
        overrides: `problem=question` and the like; commas join several columns, nothing behind the
            equals sign means that there is no such column.
        columns: the source's.
        required: what there has to be a column for.

    Raises:
        DataError: an unknown name, or no column for what is required.
    """
    if mapping not in MAPPINGS:
        raise DataError(f"mapping {mapping!r} is unknown; there are {', '.join(MAPPINGS)}")
    found = MAPPINGS[mapping]
    for text in overrides:
        name, equals, value = text.partition("=")
        name = "images" if name == "image" else name
        if not equals or name not in _FIELDS:
            raise DataError(
                f"--map {text!r}: should read NAME=COLUMN, NAME of {', '.join(_FIELDS)}"
            )
        given = tuple(part for part in value.split(",") if part)
        for column in given:
            if not _has(column, columns):
                raise DataError(f"--map {text}: no column {column!r}; {_listed(columns)}")
        changed: dict[str, Any] = {name: given}
        if name == "images":
            changed["join_images"] = len(given) > 1
        found = replace(found, **changed)
    for name in required:
        names = getattr(found, name)
        if not any(_has(column, columns) for column in names):
            raise DataError(
                f"no column for {name}: looked for {', '.join(names)}; {_listed(columns)}; "
                f"say which with --map {name}=COLUMN"
            )
    is_open = found.options == ColumnMap().options
    if is_open and not any(_has(c, columns) for c in found.options) and "A" in columns:
        found = replace(found, options=_LETTERS)
    return found


def passed_columns(columns: Sequence[str], names: ColumnMap) -> tuple[str, ...]:
    """Columns that travel along unread: all that are not the first choice for anything."""
    taken: set[str] = set()
    for name in _FIELDS:
        chosen = [c for c in getattr(names, name) if c in columns]
        every = name in ("images", "options")
        # The row's own name is of use to whoever looks for it later.
        taken.update(() if name == "id" else chosen if every else chosen[:1])
    return tuple(column for column in columns if column not in taken)


def map_row(cells: Cells, names: ColumnMap, passed: Sequence[str]) -> MappedRow:
    """Read a row's cells.

    Args:
        cells: the row.
        names: what its columns mean.
        passed: columns that travel along.

    Raises:
        RowError: options or pictures that cannot be told apart from something else.
    """
    question = as_text(_first(cells, names.problem)) or ""
    options = _options(cells, names)
    problem = question
    if hint := as_text(_first(cells, names.hint)):
        problem = f"Hint: {hint}\n{problem}"
    if options and names.show_options and not shows_options(question, options):
        listed = "\n".join(f"{letter}. {text}" for letter, text in options.items())
        problem = f"{problem}\nOptions:\n{listed}"
    images = _images(cells, names)
    if not images and names.images:
        refuse_hidden_picture(cells, passed)
    problem, images = _unnumbered(problem, images)
    return MappedRow(
        row_id=as_text(_first(cells, names.id)) or "",
        problem=problem,
        question=question,
        answer=as_text(_first(cells, names.answer)) or "",
        images=tuple(images),
        options=options,
        category=as_text(_first(cells, names.category)),
        source=as_text(_first(cells, names.source)),
        passed={c: text for c in passed if (text := as_text(cells.get(c))) is not None},
    )


def as_text(value: Any) -> str | None:
    """A cell as text, None where it is missing or holds bytes.

    Raises:
        RowError: text that is not Unicode.
    """
    if value is None or isinstance(value, bytes) or value != value:  # NaN marks a missing value.
        return None
    if isinstance(value, str):
        text = value
    elif isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, JsonFloat):
        text = value.text
    elif isinstance(value, list | dict):
        text = json.dumps(value, ensure_ascii=False, default=_plain)
    elif isinstance(value, Decimal):
        text = f"{value:f}"
    else:
        text = str(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RowError(
            DropReason.UNREADABLE_ROW, f"holds text that is not Unicode: {ascii(text[:80])}"
        ) from None
    return text


def _plain(value: object) -> str | None:
    return None if isinstance(value, bytes) else str(value)


def _has(column: str, columns: Sequence[str]) -> bool:
    return column in columns or column.partition(".")[0] in columns


def _listed(columns: Sequence[str]) -> str:
    return f"the columns are {', '.join(columns) or 'none'}"


def _cell(cells: Cells, name: str) -> Any:
    if name in cells:
        return cells[name]
    head, dot, rest = name.partition(".")
    if not dot or head not in cells:
        return None
    inner = cells[head]
    if isinstance(inner, str):
        inner = literal(inner)
    return _cell(inner, rest) if isinstance(inner, dict) else None


def _first(cells: Cells, names: Sequence[str]) -> Any:
    return next((value for n in names if (value := _cell(cells, n)) is not None), None)


def _options(cells: Cells, names: ColumnMap) -> dict[str, str]:
    if len(names.options) > 1 and all(len(name) == 1 for name in names.options):
        texts = {name: as_text(_cell(cells, name)) for name in names.options}
        return {name: text for name, text in texts.items() if text is not None}
    return {
        k: t for k, v in parse_options(_first(cells, names.options)).items() if (t := as_text(v))
    }


def _images(cells: Cells, names: ColumnMap) -> list[ImageRef]:
    found = {name: refs for name in names.images if (refs := image_refs(_cell(cells, name)))}
    if names.join_images:
        return [ref for refs in found.values() for ref in refs]
    if all(name in found for name in _SAME_PICTURE):
        raise RowError(
            DropReason.UNREADABLE_ROW,
            "has pictures in both images and image; say which counts with --map images=COLUMN",
        )
    return next(iter(found.values()), [])


def _unnumbered(problem: str, images: list[ImageRef]) -> tuple[str, list[ImageRef]]:
    """MMMU's marks, `<image 2>`, as plain ones, with the pictures in the order of the marks."""
    numbers = [int(number) - 1 for number in _NUMBERED_MARK.findall(problem)]
    if not numbers or "<image>" in problem:
        return problem, images
    if any(not 0 <= number < len(images) for number in numbers):
        raise RowError(
            DropReason.PLACEHOLDERS,
            f"problem refers to image {max(numbers) + 1}, but the row has {len(images)}",
        )
    unused = [image for number, image in enumerate(images) if number not in numbers]
    text = "<image>" * len(unused) + _NUMBERED_MARK.sub("<image>", problem)
    return text, unused + [images[number] for number in numbers]
