"""A row's cells as problem, answer, options and pictures, by a mapping of columns.

A name with a dot reaches into an object: `metadata.source` is the cell `source` of the column
`metadata`. Of several names for one thing the first that has a value counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from mupo_ray.data.table import DropReason, ImageRef, RowError
from mupo_ray.errors import DataError
from mupo_ray.prepare.column_maps import LETTERS, MAPPINGS, THINGS, ColumnMap, has_column
from mupo_ray.prepare.options import parse_options, shows_options
from mupo_ray.prepare.picture_cells import image_refs, refuse_hidden_picture
from mupo_ray.prepare.source_text import JsonFloat, literal

Cells = Mapping[str, Any]


_SAME_PICTURE = ("images", "image")
_NUMBERED_MARK = re.compile(r"<image ?(\d+)>")


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
    required: Sequence[str] | None = None,
) -> ColumnMap:
    """A ready mapping with a user's own words on top, checked against a source's columns.

    Args:
        mapping: a name of `MAPPINGS`.
        overrides: `problem=question` and the like; commas join several columns, nothing behind the
            equals sign means that there is no such column.
        columns: the source's.
        required: what there has to be a column for; what the mapping says where None. What a user
            says there is no column for is not required, but for problem and answer.

    Raises:
        DataError: an unknown name, or no column for what is required.
    """
    if mapping not in MAPPINGS:
        raise DataError(f"mapping {mapping!r} is unknown; there are {', '.join(MAPPINGS)}")
    found = MAPPINGS[mapping]
    for text in overrides:
        name, equals, value = text.partition("=")
        name = "images" if name == "image" else name
        if not equals or name not in THINGS:
            raise DataError(f"--map {text!r}: should read NAME=COLUMN, NAME of {', '.join(THINGS)}")
        given = tuple(part for part in value.split(",") if part)
        for column in given:
            if not has_column(column, columns):
                raise DataError(f"--map {text}: no column {column!r}; {_listed(columns)}")
        changed: dict[str, Any] = {name: given}
        if name == "images":
            changed["join_images"] = len(given) > 1
        found = replace(found, **changed)
    _require(mapping, found, required, columns)
    is_open = found.options == ColumnMap().options
    if is_open and not any(has_column(c, columns) for c in found.options) and "A" in columns:
        found = replace(found, options=LETTERS)
    return found


def _require(
    mapping: str, found: ColumnMap, required: Sequence[str] | None, columns: Sequence[str]
) -> None:
    needed = [
        name
        for name in (found.required if required is None else required)
        if name in ("problem", "answer") or getattr(found, name)
    ]
    missing = [
        name for name in needed if not any(has_column(c, columns) for c in getattr(found, name))
    ]
    if not missing:
        return
    looked = "; ".join(f"{name}: looked for {', '.join(getattr(found, name))}" for name in missing)
    raise DataError(
        f"mapping {mapping} expects columns for {', '.join(needed)}, and there is none for "
        f"{looked}; {_listed(columns)}; say which with --map {missing[0]}=COLUMN"
    )


def passed_columns(columns: Sequence[str], names: ColumnMap) -> tuple[str, ...]:
    """Columns that travel along unread: all that are not the first choice for anything."""
    taken: set[str] = set()
    for name in THINGS:
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
    question = _text(cells, names.problem)
    options = _options(cells, names)
    problem = _text(cells, names.asked) or _asked(question, options, cells, names)
    answer = _text(cells, names.answer)
    images = _images(cells, names)
    if not images and names.images:
        refuse_hidden_picture(cells, passed)
    problem, images = _unnumbered(problem, images, is_merged=names.merged_image)
    return MappedRow(
        row_id=as_text(_first(cells, names.id)) or "",
        problem=problem,
        question=question,
        answer=names.answer_words.get(answer, answer),
        images=tuple(images),
        options=options,
        category=_label(_first(cells, names.category)),
        source=as_text(_first(cells, names.source)),
        passed={c: text for c in passed if (text := as_text(cells.get(c))) is not None},
    )


def _asked(question: str, options: Mapping[str, str], cells: Cells, names: ColumnMap) -> str:
    """What the model is asked, out of its parts."""
    problem = question
    if hint := _text(cells, names.hint):
        problem = f"Hint: {hint}\n{problem}"
    # Letters whose options are themselves stand in the picture.
    is_said = all(letter == text for letter, text in options.items())
    if not names.show_options or is_said or shows_options(question, options):
        return problem
    listed = "\n".join(f"{letter}. {text}" for letter, text in options.items())
    return f"{problem}\nOptions:\n{listed}"


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


def _text(cells: Cells, names: Sequence[str]) -> str:
    """The first text that is not blank; "" without one."""
    texts = (as_text(_cell(cells, name)) for name in names)
    return next((text for text in texts if text and text.strip()), "")


def _label(value: Any) -> str | None:
    """A category as text; several are joined."""
    items = literal(value) if isinstance(value, str) and value.startswith("[") else value
    if not isinstance(items, list):
        return as_text(value)
    return ", ".join(text for item in items if (text := as_text(item)))


def _options(cells: Cells, names: ColumnMap) -> dict[str, str]:
    whole = parse_options(_first(cells, [name for name in names.options if len(name) > 1]))
    single = {name: _cell(cells, name) for name in names.options if len(name) == 1}
    found = (whole or single).items()
    return {letter: text for letter, option in found if (text := as_text(option))}


def _images(cells: Cells, names: ColumnMap) -> list[ImageRef]:
    found = {name: refs for name in names.images if (refs := image_refs(_cell(cells, name)))}
    if names.image_folder:
        found = {
            name: [_below(names.image_folder, r) for r in refs] for name, refs in found.items()
        }
    if names.join_images:
        return [ref for refs in found.values() for ref in refs]
    if all(name in found for name in _SAME_PICTURE):
        raise RowError(
            DropReason.UNREADABLE_ROW,
            "has pictures in both images and image; say which counts with --map images=COLUMN",
        )
    return next(iter(found.values()), [])


def _below(folder: str, image: ImageRef) -> ImageRef:
    """A picture in a file of its own as the file's folder names it."""
    if image.encoded is not None or image.path is None or "/" in image.path:
        return image
    return replace(image, path=f"{folder}/{image.path}")


def _unnumbered(
    problem: str, images: list[ImageRef], *, is_merged: bool
) -> tuple[str, list[ImageRef]]:
    """MMMU's marks, `<image 2>`, as plain ones, with the pictures in the order of the marks."""
    numbers = [int(number) - 1 for number in _NUMBERED_MARK.findall(problem)]
    if not numbers or "<image>" in problem:
        return problem, images
    if is_merged and len(images) == 1 and max(numbers) > 0:
        # The marks say which part of the picture is meant.
        return f"<image>{problem}", images
    if any(not 0 <= number < len(images) for number in numbers):
        raise RowError(
            DropReason.PLACEHOLDERS,
            f"problem refers to image {max(numbers) + 1}, but the row has {len(images)}",
        )
    unused = [image for number, image in enumerate(images) if number not in numbers]
    text = "<image>" * len(unused) + _NUMBERED_MARK.sub("<image>", problem)
    return text, unused + [images[number] for number in numbers]
