"""Pictures of questions for a page: found in the data file, shrunk where large, embedded."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from mupo_ray.data.images import decode_image
from mupo_ray.data.table import open_table
from mupo_ray.errors import DataError
from mupo_ray.files import sha256_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mupo_ray.data.table import PromptTable

# A picture up to this size is embedded as it is; a larger one is shrunk, or the report would grow
# to megabytes.
_MAX_PICTURE_BYTES = 64 * 1024
_MAX_PICTURE_SIDE = 480
_MIME = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A picture of a question, or why there is none."""

    uri: str = ""
    """The whole picture; empty where it is lacking."""
    lack: str = ""


@dataclass(frozen=True, slots=True)
class Pictures:
    """Pictures of a data file's rows."""

    table: PromptTable | None
    """None where the file is not to be found."""

    def of(self, row: int, hashes: Sequence[str]) -> list[Picture]:
        """Pictures of a row, embedded as far as they are at hand.

        Args:
            row: number of the row in the data file.
            hashes: sha256 of each picture's encoded bytes; the data file's must have the same.
        """
        missing = [Picture(lack="picture not found in the data file")] * len(hashes)
        if self.table is None or not hashes:
            return missing
        try:
            raw = self.table.read([row])[0]
            encoded = [
                ref.encoded or (Path(raw.folder) / str(ref.path)).read_bytes() for ref in raw.images
            ]
        except (OSError, IndexError, DataError):
            return missing
        same = [sha256_of(data) for data in encoded] == list(hashes)
        return [_embedded(data) for data in encoded] if same else missing


def open_pictures(data: str | None) -> Pictures:
    """The pictures of a data set, as far as it is still where it was.

    Args:
        data: its path, as `data.train` or an evaluation set has it; None where it is not known.
    """
    if not data:
        return Pictures(None)
    try:
        return Pictures(open_table(data))
    except DataError:
        return Pictures(None)


def _embedded(data: bytes) -> Picture:
    kind = next((mime for magic, mime in _MIME.items() if data.startswith(magic)), None)
    if kind is None or len(data) > _MAX_PICTURE_BYTES:
        try:
            kind, data = "jpeg", _shrunk(data)
        except DataError:
            return Picture(lack="picture cannot be decoded")
    return Picture(uri=f"data:image/{kind};base64,{base64.b64encode(data).decode()}")


def _shrunk(data: bytes) -> bytes:
    picture = decode_image(data)
    image = Image.frombytes("RGB", (picture.width, picture.height), picture.rgb)
    image.thumbnail((_MAX_PICTURE_SIDE, _MAX_PICTURE_SIDE))
    out = io.BytesIO()
    image.save(out, "JPEG", quality=85)
    return out.getvalue()
