"""Pictures in the cells of a row: every spelling that data sets use for them."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from typing import Any

from mupo_ray.data.table import DropReason, ImageRef, RowError
from mupo_ray.prepare.source_text import literal

Cells = Mapping[str, Any]

# Shorter text is a path, whatever letters it has: no picture has so few bytes.
_MIN_BASE64_CHARS = 64
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]+={0,2}\s*")
_DATA_URI = re.compile(r"data:[\w/+.-]*;base64,")
_PICTURE_NAME = re.compile(r"\S[^\n]*\.(?:png|jpe?g|webp|gif|bmp|tiff?|avif)", re.IGNORECASE)


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
