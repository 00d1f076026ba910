"""Encoded pictures to plain RGB, the way a person would see them.

Transparent parts lie on white, EXIF rotation is applied, 16-bit grey keeps its range, and of an
animation the first frame counts.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from mupo_ray.data.table import DropReason, ImageRef, RowError
from mupo_ray.files import sha256_of
from mupo_ray.types import RgbImage

if TYPE_CHECKING:
    from PIL.Image import Image as PilImage

MAX_PIXELS = 2**26
"""Largest picture decoded (8192 x 8192, 192 MiB as RGB): a small file can claim far more."""

MAX_ASPECT_RATIO = 200
"""Qwen-VL's image processor refuses pictures longer than this many times their width."""

# Formats that Pillow decodes by itself; EPS, for one, would start an outside program.
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "PPM", "ICO")
_ALPHA_MODES = ("RGBA", "LA", "PA", "RGBa", "La")


def decode_image(encoded: bytes, *, max_pixels: int = MAX_PIXELS) -> RgbImage:
    """Decode one picture.

    Args:
        encoded: a whole image file.
        max_pixels: width times height that is still decoded.

    Raises:
        RowError: empty, truncated or broken bytes, an unknown format, or too many pixels.
    """
    if not encoded:
        raise RowError(DropReason.BROKEN_IMAGE, "image has 0 bytes, expected an encoded picture")
    try:
        with Image.open(io.BytesIO(encoded), formats=_FORMATS) as opened:
            width, height = opened.size
            if width * height > max_pixels:
                raise RowError(
                    DropReason.IMAGE_TOO_LARGE,
                    f"image has {width} x {height} pixels, at most {max_pixels} are decoded",
                )
            opened.load()
            picture = _to_rgb(ImageOps.exif_transpose(opened))
    except RowError:
        raise
    except UnidentifiedImageError as err:
        raise RowError(
            DropReason.BROKEN_IMAGE,
            f"image of {len(encoded)} bytes cannot be decoded: it is broken, or none of "
            f"{', '.join(_FORMATS)}",
        ) from err
    except Image.DecompressionBombError as err:
        raise RowError(DropReason.IMAGE_TOO_LARGE, f"image is too large: {err}") from err
    except Exception as err:  # Pillow's decoders raise nearly any type on hostile bytes.
        raise RowError(
            DropReason.BROKEN_IMAGE,
            f"image of {len(encoded)} bytes cannot be decoded: {type(err).__name__}: "
            f"{str(err).replace(chr(10), ' ')[:200]}",
        ) from err
    return RgbImage(
        sha256=sha256_of(encoded),
        width=picture.width,
        height=picture.height,
        rgb=picture.tobytes(),
    )


def load_image(ref: ImageRef, folder: str | Path) -> RgbImage:
    """Decode a picture from its bytes, or from its file where the row holds only a path.

    Args:
        ref: what the row holds.
        folder: folder of the data file, which relative paths start from.

    Raises:
        RowError: as `decode_image`, or the file is missing or unreadable, or the cell is null.
    """
    return decode_image(read_image(ref, folder))


def read_image(ref: ImageRef, folder: str | Path) -> bytes:
    """A picture's encoded bytes, from the row itself or from its file.

    Args:
        ref: what the row holds.
        folder: folder that relative paths start from.

    Raises:
        RowError: the file is missing or unreadable, or the cell is null.
    """
    if ref.encoded is not None:
        return ref.encoded
    if not ref.path:
        raise RowError(
            DropReason.MISSING_IMAGE, "image is null, expected bytes or the path of a file"
        )
    try:
        return (Path(folder) / ref.path).read_bytes()
    except (OSError, ValueError) as err:  # ValueError: a path with a null character.
        cause = getattr(err, "strerror", None) or err
        raise RowError(
            DropReason.MISSING_IMAGE,
            f"image file {ref.path[:200]!r} cannot be read ({cause}); looked in {folder}",
        ) from err


def image_extension(encoded: bytes) -> str:
    """The format of a picture that `decode_image` accepts, in lower case: `png`, `jpeg`, ..."""
    with Image.open(io.BytesIO(encoded), formats=_FORMATS) as opened:
        return (opened.format or "image").lower()


def check_aspect_ratio(width: int, height: int) -> None:
    """Refuse what Qwen-VL's image processor would refuse.

    Raises:
        RowError: one side is more than `MAX_ASPECT_RATIO` times the other.
    """
    ratio = max(width, height) / min(width, height)
    if ratio > MAX_ASPECT_RATIO:
        raise RowError(
            DropReason.ASPECT_RATIO,
            f"image of {width} x {height} has an aspect ratio of {ratio:.6g}, at most "
            f"{MAX_ASPECT_RATIO} is allowed",
        )


def _to_rgb(image: PilImage) -> PilImage:
    if image.mode.startswith("I"):
        return _grey16_to_rgb(image)
    if image.mode == "F":
        raise ValueError("float pixels have no agreed range; expected 8 or 16 bits a channel")
    if image.mode in _ALPHA_MODES or "transparency" in image.info:
        layer = image.convert("RGBA")
        white = Image.new("RGBA", layer.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, layer).convert("RGB")
    return image.convert("RGB")


def _grey16_to_rgb(image: PilImage) -> PilImage:
    """16-bit grey to RGB by its high byte, as Pillow reads 16-bit colour; convert() clips."""
    grey = np.asarray(image).astype(np.int64)
    if grey.min() < 0 or grey.max() > 0xFFFF:
        raise ValueError(
            f"grey values {grey.min()} to {grey.max()} have no agreed range; expected 8 or 16 bits"
        )
    high = (grey >> 8).astype(np.uint8)
    if "transparency" in image.info:
        high[grey == image.info["transparency"]] = 255
    return Image.fromarray(high).convert("RGB")
