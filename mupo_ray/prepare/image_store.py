"""Pictures on disk under the hash of their content: each once, however many rows show it.

    images/3f/3f9a...c1.png

The files are the encoded pictures as they came. Beside a table that names them, rows stay small:
shuffled reading fetches one row and one file, and no row group holds megabytes. Two processes that
store the same picture write the same bytes.
"""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from mupo_ray.data.images import check_aspect_ratio, decode_image, image_extension
from mupo_ray.prepare.picture_hash import PictureHash, hash_picture

IMAGE_FOLDER = "images"

# With hashes, 70 KB each.
_REMEMBERED = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """What was found of one encoded picture that can be used."""

    sha256: str
    extension: str
    print: PictureHash | None
    """None where no one compares pictures."""

    @property
    def path(self) -> str:
        """Place below the folder of the table."""
        return f"{IMAGE_FOLDER}/{self.sha256[:2]}/{self.sha256}.{self.extension}"


class PictureReader:
    """Decodes pictures to see that they can be; one seen lately is not decoded again."""

    def __init__(self, *, with_hashes: bool) -> None:
        self._with_hashes = with_hashes
        self._seen: OrderedDict[str, Picture] = OrderedDict()

    def inspect(self, encoded: bytes) -> Picture:
        """Check one picture.

        Raises:
            RowError: it cannot be decoded, is too large or too long.
        """
        sha256 = hashlib.sha256(encoded).hexdigest()
        found = self._seen.get(sha256)
        if found is None:
            image = decode_image(encoded)
            check_aspect_ratio(image.width, image.height)
            found = Picture(
                sha256=sha256,
                extension=image_extension(encoded),
                print=hash_picture(image) if self._with_hashes else None,
            )
            self._seen[sha256] = found
        self._seen.move_to_end(sha256)
        if len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)
        return found


def store_picture(folder: Path, picture: Picture, encoded: bytes) -> None:
    """Write a picture whole, unless it is there.

    Args:
        folder: of the table.
        picture: what `PictureReader.inspect` says of it.
        encoded: its bytes.
    """
    path = folder / picture.path
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_bytes(encoded)
    partial.replace(path)
