"""Decoding pictures: pixels worked out by hand for each kind of file."""

from __future__ import annotations

import hashlib
import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from mupo_ray.data.images import (
    check_aspect_ratio,
    decode_image,
    image_extension,
    load_image,
    read_image,
)
from mupo_ray.data.table import DropReason, ImageRef, RowError
from mupo_ray.types import RgbImage

WHITE, BLACK = (255, 255, 255), (0, 0, 0)


def encode(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def pixel(image: RgbImage, x: int, y: int) -> tuple[int, ...]:
    start = (y * image.width + x) * 3
    return tuple(image.rgb[start : start + 3])


def dot(mode: str, ground: object, ink: object) -> Image.Image:
    """8 x 8 with a 2 x 2 centre, as of a figure on a transparent ground."""
    image = Image.new(mode, (8, 8), ground)
    image.paste(ink, (3, 3, 5, 5))
    return image


def test_plain_rgb_keeps_pixels_and_hashes_the_file() -> None:
    encoded = encode(Image.new("RGB", (5, 3), (10, 20, 30)))
    image = decode_image(encoded)
    assert (image.width, image.height) == (5, 3)
    assert image.rgb == bytes((10, 20, 30)) * 15
    assert image.sha256 == hashlib.sha256(encoded).hexdigest()
    assert image.pil().size == (5, 3)


@pytest.mark.parametrize(
    ("encoded", "ink"),
    [
        (encode(dot("RGBA", (0, 0, 0, 0), (0, 0, 0, 255))), BLACK),
        (encode(dot("LA", (0, 0), (0, 255))), BLACK),
        (encode(dot("RGBA", (0, 0, 0, 0), (0, 0, 0, 255)), "WEBP", lossless=True), BLACK),
        (encode(dot("RGB", (1, 2, 3), (9, 9, 9)), transparency=(1, 2, 3)), (9, 9, 9)),
        (encode(dot("L", 7, 90), transparency=7), (90, 90, 90)),
    ],
    ids=["rgba", "grey_alpha", "webp", "rgb_key_colour", "grey_key_colour"],
)
def test_b01_transparency_lies_on_white(encoded: bytes, ink: tuple[int, ...]) -> None:
    image = decode_image(encoded)
    assert pixel(image, 0, 0) == WHITE
    assert pixel(image, 3, 3) == ink


def test_half_transparent_black_is_grey() -> None:
    image = decode_image(encode(Image.new("RGBA", (1, 1), (0, 0, 0, 51))))
    assert pixel(image, 0, 0) == (204, 204, 204)  # 255 * (1 - 51/255)


def test_b13_palette_with_transparency() -> None:
    palette = dot("P", 0, 2)
    palette.putpalette([0, 0, 0, 0, 0, 0, 200, 0, 0])
    image = decode_image(encode(palette, transparency=0))
    assert pixel(image, 0, 0) == WHITE
    assert pixel(image, 3, 3) == (200, 0, 0)


def test_palette_without_transparency() -> None:
    palette = dot("P", 1, 2)
    palette.putpalette([0, 0, 0, 0, 0, 250, 200, 0, 0])
    assert pixel(decode_image(encode(palette)), 0, 0) == (0, 0, 250)


def test_b03_exif_orientation_6_turns_the_picture() -> None:
    stored = Image.new("RGB", (24, 16), BLACK)
    stored.paste((255, 0, 0), (0, 0, 6, 16))  # A red bar on the left, shown on top.
    exif = Image.Exif()
    exif[0x0112] = 6
    image = decode_image(encode(stored, "JPEG", exif=exif, quality=95, subsampling=0))
    assert (image.width, image.height) == (16, 24)
    assert np.allclose(pixel(image, 8, 1), (255, 0, 0), atol=6)
    assert np.allclose(pixel(image, 8, 22), BLACK, atol=6)


def test_cmyk_jpeg() -> None:
    image = decode_image(encode(Image.new("CMYK", (8, 8), (255, 0, 0, 0)), "JPEG", quality=100))
    assert np.allclose(pixel(image, 4, 4), (0, 255, 255), atol=3)


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_16_bit_grey_keeps_its_range(kind: str) -> None:
    grey = Image.fromarray(np.array([[0, 0x80FF, 0xFFFF]], dtype=np.uint16))
    image = decode_image(encode(grey, kind))
    assert [pixel(image, x, 0)[0] for x in range(3)] == [0, 0x80, 0xFF]


def test_first_frame_of_an_animation() -> None:
    frames = [Image.new("RGB", (4, 4), c) for c in ((255, 0, 0), (0, 255, 0))]
    encoded = encode(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert Image.open(io.BytesIO(encoded)).n_frames == 2
    assert pixel(decode_image(encoded), 1, 1) == (255, 0, 0)


def png_claiming(width: int, height: int) -> bytes:
    """A PNG of 60 bytes whose header claims a huge picture."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IDAT", zlib.compress(b"\0"))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + body + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [9_000, 60_000], ids=["over_our_limit", "over_pillows_limit"])
def test_huge_claims_are_refused_before_decoding(side: int) -> None:
    with pytest.raises(RowError, match="pixels") as caught:
        decode_image(png_claiming(side, side))
    assert caught.value.reason is DropReason.IMAGE_TOO_LARGE


NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8))


@pytest.mark.parametrize(
    "encoded",
    [
        b"",
        b"not a picture",
        encode(NOISE)[:2000],
        encode(NOISE, "JPEG")[:600],
        encode(NOISE, "WEBP")[:300],
        encode(NOISE, "EPS"),
        encode(Image.new("F", (2, 2), 0.5), "TIFF"),
    ],
    ids=["empty", "text", "cut_png", "cut_jpeg", "cut_webp", "unsafe_format", "float_pixels"],
)
def test_unusable_bytes_are_row_errors(encoded: bytes) -> None:
    with pytest.raises(RowError) as caught:
        decode_image(encoded)
    assert caught.value.reason is DropReason.BROKEN_IMAGE
    assert "bytes" in str(caught.value)


def test_b07_path_is_relative_to_the_data_file(tmp_path) -> None:
    (tmp_path / "ok.png").write_bytes(encode(Image.new("RGB", (2, 2), (1, 2, 3))))
    assert load_image(ImageRef(path="ok.png"), tmp_path).rgb[:3] == bytes((1, 2, 3))
    with pytest.raises(RowError, match="'no/such.png'") as caught:
        load_image(ImageRef(path="no/such.png"), tmp_path)
    assert caught.value.reason is DropReason.MISSING_IMAGE
    with pytest.raises(RowError, match="null"):
        load_image(ImageRef(), tmp_path)


def test_bytes_win_over_a_path_that_is_gone(tmp_path) -> None:
    ref = ImageRef(encoded=encode(Image.new("RGB", (2, 2))), path="gone.png")
    assert load_image(ref, tmp_path).width == 2


def test_lossy_webp_and_one_pixel() -> None:
    webp = decode_image(encode(Image.new("RGB", (9, 7), (200, 30, 40)), "WEBP", quality=90))
    assert (webp.width, webp.height) == (9, 7)
    assert np.allclose(pixel(webp, 4, 3), (200, 30, 40), atol=6)
    one = decode_image(encode(Image.new("RGB", (1, 1), (5, 6, 7))))
    assert (one.width, one.height, one.rgb) == (1, 1, bytes((5, 6, 7)))


@pytest.mark.parametrize("kind", ["WEBP", "PNG"])
def test_first_frame_of_other_animations(kind: str) -> None:
    frames = [Image.new("RGB", (4, 4), c) for c in ((255, 0, 0), (0, 255, 0))]
    encoded = encode(frames[0], kind, save_all=True, append_images=frames[1:], lossless=True)
    assert Image.open(io.BytesIO(encoded)).n_frames == 2
    assert pixel(decode_image(encoded), 1, 1) == (255, 0, 0)


def test_transparency_of_an_animated_palette() -> None:
    frames = [dot("P", 0, 2), dot("P", 0, 1)]
    for frame in frames:
        frame.putpalette([0, 0, 0, 0, 250, 0, 200, 0, 0])
    encoded = encode(
        frames[0], "GIF", save_all=True, append_images=frames[1:], transparency=0, disposal=2
    )
    image = decode_image(encoded)
    assert (pixel(image, 0, 0), pixel(image, 3, 3)) == (WHITE, (200, 0, 0))


def test_one_bit_and_grey() -> None:
    bits = dot("1", 1, 0)
    assert pixel(decode_image(encode(bits)), 0, 0) == WHITE
    assert pixel(decode_image(encode(bits)), 3, 3) == BLACK
    assert pixel(decode_image(encode(Image.new("L", (2, 2), 77))), 0, 0) == (77, 77, 77)


@pytest.mark.parametrize(
    ("kind", "extension"),
    [("PNG", "png"), ("JPEG", "jpeg"), ("WEBP", "webp"), ("GIF", "gif"), ("TIFF", "tiff")],
)
def test_extensions_come_from_the_content(kind: str, extension: str) -> None:
    assert image_extension(encode(Image.new("L", (2, 2)), kind)) == extension


def test_b05_aspect_ratio_of_200_and_above() -> None:
    check_aspect_ratio(4, 800)
    check_aspect_ratio(800, 4)
    with pytest.raises(RowError, match="803 has an aspect ratio of 200.75, at most 200") as caught:
        check_aspect_ratio(4, 803)
    assert caught.value.reason is DropReason.ASPECT_RATIO


def test_paths_that_no_file_can_have(tmp_path) -> None:
    for path in ("a\0b.png", "x" * 100_000):
        with pytest.raises(RowError) as caught:
            read_image(ImageRef(path=path), tmp_path)
        assert caught.value.reason is DropReason.MISSING_IMAGE
        assert len(str(caught.value)) < 600
