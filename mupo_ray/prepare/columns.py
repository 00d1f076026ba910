"""A row's cells as problem, answer, options and pictures, by a mapping of columns.

A name with a dot reaches into an object: `metadata.source` is the cell `source` of the column
`metadata`. Of several names for one thing the first that has a value counts.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from mupo_ray.data.table import DropReason, ImageRef, RowError
from mupo_ray.prepare.column_maps import LETTERS, ColumnMap
from mupo_ray.prepare.source_text import JsonFloat, literal

Cells = Mapping[str, Any]

_SAME_PICTURE = ("images", "image")
_NUMBERED_MARK = re.compile(r"<image ?(\d+)>")
# Where an option begins in `A. 200;B. 32` or on a line of its own.
_LABEL = re.compile(r"(?:^|[;\n])\s*\(?([A-Z])\s*[.):\u3001\uff1a\uff0e\uff09]\s*")
# Shorter text is a path, whatever letters it has: no picture has so few bytes.
_MIN_BASE64_CHARS = 64
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]+={0,2}\s*")
_DATA_URI = re.compile(r"data:[\w/+.-]*;base64,")
_PICTURE_NAME = re.compile(r"\S[^\n]*\.(?:png|jpe?g|webp|gif|bmp|tiff?|avif)", re.IGNORECASE)


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
    options = (whole or single).items()
    return {letter: text for letter, option in options if (text := as_text(option))}


def _images(cells: Cells, names: ColumnMap) -> list[ImageRef]:
    by_column = {
        name: [_below(names.image_folder, ref) for ref in refs]
        for name in names.images
        if (refs := image_refs(_cell(cells, name)))
    }
    if names.join_images:
        return [ref for refs in by_column.values() for ref in refs]
    if all(name in by_column for name in _SAME_PICTURE):
        raise RowError(
            DropReason.UNREADABLE_ROW,
            "has pictures in both images and image; say which counts with --map images=COLUMN",
        )
    return next(iter(by_column.values()), [])


def _below(folder: str, image: ImageRef) -> ImageRef:
    """A picture in a file of its own as the file's folder names it."""
    if not folder or image.encoded is not None or image.path is None or "/" in image.path:
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


def parse_options(cell: Any) -> dict[str, Any]:
    """Letter -> option, in order.

    Args:
        cell: an object by letter, an object of `label` and `text`, a list, or text: one of these as
            JSON or Python writes it, or options that begin with `A.`, `B.`, ... and end in
            semicolons or line ends.

    Raises:
        RowError: none of these, other labels than letters, or more options than letters.
    """
    options = {letter.strip().upper(): option for letter, option in _by_label(cell).items()}
    if any(letter not in LETTERS for letter in options):
        raise _bad_options("have other labels than the letters A to Z", cell)
    return options


def shows_options(question: str, options: Mapping[str, str]) -> bool:
    """Whether a question names each of its options itself, as `A.`, `(A)` or `A:`."""
    return all(
        re.search(rf"(?<![A-Za-z0-9]){re.escape(letter)}\s*[.):\u3001\uff1a\uff0e\uff09]", question)
        for letter in options
    )


def _by_label(cell: Any) -> dict[str, Any]:
    if cell is None or cell == "":
        return {}
    if isinstance(cell, str):
        inner = literal(cell)
        return _labelled(cell) if inner is None else _by_label(inner)
    if isinstance(cell, dict):
        if isinstance(cell.get("label"), list) and isinstance(cell.get("text"), list):
            return dict(zip(map(str, cell["label"]), cell["text"], strict=False))
        return {str(letter): option for letter, option in cell.items() if option is not None}
    if not isinstance(cell, list):
        raise _bad_options(f"are a {type(cell).__name__}", cell)
    if len(cell) > len(LETTERS):
        raise _bad_options(f"are {len(cell)}, more than there are letters", cell)
    return dict(zip(LETTERS, _unlabelled(cell), strict=False))


def _labelled(text: str) -> dict[str, Any]:
    pieces = _LABEL.split(text)
    letters, options = pieces[1::2], pieces[2::2]
    if pieces[0].strip() or len(letters) < 2 or tuple(letters) != LETTERS[: len(letters)]:
        raise _bad_options("cannot be told apart", text)
    return {
        letter: option.strip().rstrip(";").rstrip()
        for letter, option in zip(letters, options, strict=True)
    }


def _unlabelled(options: list[Any]) -> list[Any]:
    """Options without their own letters, where all of them begin with theirs."""
    cut = []
    for letter, option in zip(LETTERS, options, strict=False):
        label = _LABEL.match(option) if isinstance(option, str) else None
        if label is None or label[1] != letter:
            return options
        cut.append(option[label.end() :])
    return cut


def _bad_options(what: str, cell: Any) -> RowError:
    return RowError(
        DropReason.BAD_OPTIONS,
        f"options {what}; expected a list, an object by letter or text such as 'A. 3;B. 5', got "
        f"{str(cell)[:100]!r}",
    )


def image_refs(cell: Any) -> list[ImageRef]:
    """Pictures of one cell.

    Args:
        cell: bytes, a path, base64, a data URI, an object with `bytes` or `path`, or a list of any.

    Raises:
        RowError: a web address, base64 that is none, or something that is no picture at all.
    """
    if cell is None or cell == "" or cell != cell:
        return []
    if isinstance(cell, list):
        # A null among pictures is a missing one, which an empty list is not.
        return [ref for item in cell for ref in (image_refs(item) or [ImageRef()])]
    if isinstance(cell, bytes):
        return [ImageRef(encoded=cell)]
    if isinstance(cell, dict):
        for name in ("bytes", "bytes_b64"):
            encoded = cell.get(name)
            if isinstance(encoded, bytes):
                return [ImageRef(encoded=encoded)]
            if isinstance(encoded, str) and encoded:
                return [ImageRef(encoded=_decoded(encoded))]
        path = cell.get("path")
        return [ImageRef(path=path if isinstance(path, str) else None)]
    if not isinstance(cell, str):
        raise RowError(
            DropReason.BROKEN_IMAGE,
            f"image is a {type(cell).__name__}, expected bytes, a path or base64",
        )
    text = cell.strip()
    if text.startswith("[") and text.endswith("]") and isinstance(items := literal(text), list):
        return image_refs(items)
    if _DATA_URI.match(text) or (len(text) > _MIN_BASE64_CHARS and _BASE64.fullmatch(text)):
        return [ImageRef(encoded=_decoded(text))]
    if re.match(r"https?://", text):
        raise RowError(
            DropReason.MISSING_IMAGE, f"image is the web address {text[:200]!r}; download it first"
        )
    return [ImageRef(path=cell)]


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode("".join(_DATA_URI.sub("", text, 1).split()), validate=True)
    except (binascii.Error, ValueError) as err:
        raise RowError(
            DropReason.BROKEN_IMAGE, f"image of {len(text)} characters is not base64: {err}"
        ) from None


def refuse_hidden_picture(cells: Cells, passed: Sequence[str]) -> None:
    """Refuse a row that would be text alone only because its picture's column has another name.

    Args:
        cells: the row.
        passed: columns that no one gave a meaning.

    Raises:
        RowError: one of these columns holds bytes or the name of a picture file.
    """
    for name in passed:
        cell = cells.get(name)
        first = cell[0] if isinstance(cell, list) and cell else cell
        inner = first.get("bytes") if isinstance(first, dict) else first
        is_name = isinstance(first, str) and _PICTURE_NAME.fullmatch(first)
        if isinstance(inner, bytes) or is_name:
            raise RowError(
                DropReason.UNMAPPED_IMAGE,
                f"column {name} seems to hold a picture; say so with --map images={name}, or "
                "--map images= if the rows are text alone",
            )
