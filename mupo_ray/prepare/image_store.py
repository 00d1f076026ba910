"""Pictures on disk under the hash of their content: each once, however many rows show it.

    images/3f/3f9a...c1.png

The files are the encoded pictures as they came. Beside a table that names them, rows stay small:
shuffled reading fetches one row and one file, and no row group holds megabytes. Two processes that
store the same picture write the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cachetools import LRUCache

from mupo_ray.data.images import check_aspect_ratio, decode_image, image_extension
from mupo_ray.files import sha256_of, whole
from mupo_ray.prepare.picture_hash import PictureHash, hash_picture

IMAGE_FOLDER = "images"

# With hashes, 70 KB each.
_REMEMBERED = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """What is known of one encoded picture that can be used."""

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
        self._seen: LRUCache[str, Picture] = LRUCache(_REMEMBERED)

    def inspect(self, encoded: bytes) -> Picture:
        """Check one picture.

        Raises:
            RowError: it cannot be decoded, is too large or too long.
        """
        sha256 = sha256_of(encoded)
        picture = self._seen.get(sha256)
        if picture is None:
            image = decode_image(encoded)
            check_aspect_ratio(image.width, image.height)
            self._seen[sha256] = picture = Picture(
                sha256=sha256,
                extension=image_extension(encoded),
                print=hash_picture(image) if self._with_hashes else None,
            )
        return picture


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
    with whole(path) as draft:
        draft.write_bytes(encoded)
