"""Whether two pictures are the same one in another file: re-encoded, resized, or converted.

    difference hash      16 x 16: finds candidates among thousands
    coarse thumbnail     64 x 64: throws out most of them
    fine thumbnail       up to 256 x 256, as fine as the smaller of both allows: decides

Pictures count as the same by their worst cell, not on average: two exercises over one figure differ
by a single digit. The fine thumbnails of an index lie in a file, 64 KiB a picture.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from mupo_ray.types import RgbImage

_FINE = 256
_COARSE = 64
_GRID = 16
# Brightness steps below this are noise of the encoder on flat ground.
_MIN_STEP = 3
# Cells are 2.5 pixels of the smaller picture. Copies of line drawings of 250 to 1400 pixels, as a
# JPEG of quality 60, at 0.5 to 1.7 times the size or squared, then differ by at most 19 in their
# worst cell; one other digit 18 pixels high makes 32 or more, in pictures of up to 900 pixels.
_MAX_FINE = 24
_CELL_PIXELS = 2.5
_MIN_SIDE = 32
# Bounds of the coarse thumbnails, twice what those copies need.
_MAX_COARSE = 48
_MAX_MEAN_COARSE = 2.5
_MAX_CHROMA = 16
# A cell that differs from the ground by this much shows something.
_MIN_CONTRAST = 16
_MIN_CELLS = 24
_MIN_LEVELS = 8
_MIN_CORRELATION = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureHash:
    """What is kept of a picture."""

    bits: np.ndarray
    """[15] uint64: where brightness rises or falls from cell to cell, of 16 x 16."""
    coarse: np.ndarray
    """[64, 64] uint8 brightness."""
    chroma: np.ndarray
    """[2, 16, 16] uint8 colour."""
    fine: np.ndarray
    """[256, 256] uint8 brightness."""
    size: tuple[int, int]
    """Width and height of the picture."""
    is_plain: bool
    """Whether it shows too little to be told from others: blank, or a few flat patches."""


def hash_picture(image: RgbImage) -> PictureHash:
    """Reduce a picture to what survives another encoder or size."""
    fine = image.pil().resize((_FINE, _FINE), Image.Resampling.BILINEAR)
    small = fine.resize((_COARSE, _COARSE), Image.Resampling.BILINEAR).convert("YCbCr")
    coarse, *chroma = (np.asarray(band) for band in small.split())
    grid = _averages(coarse)
    steps = (np.diff(grid, axis=0), np.diff(grid, axis=1))
    flags = np.concatenate([f.ravel() for s in steps for f in (s > _MIN_STEP, s < -_MIN_STEP)])
    # Enlarging a small picture would make up levels in between.
    is_small = image.width * image.height <= _COARSE * _COARSE
    levels = len(np.unique(np.asarray(image.pil().convert("L")) if is_small else coarse))
    ground = np.median(coarse)
    shows = int((np.abs(coarse.astype(np.int16) - ground) > _MIN_CONTRAST).sum())
    return PictureHash(
        bits=np.packbits(flags).view(np.uint64),
        coarse=coarse,
        chroma=np.stack([_averages(band) for band in chroma]).round().astype(np.uint8),
        fine=np.asarray(fine.convert("L")),
        size=(image.width, image.height),
        is_plain=shows < _MIN_CELLS or levels < _MIN_LEVELS,
    )


class PictureIndex:
    """Pictures to search for others like them; it travels without its fine thumbnails."""

    def __init__(self, store: Path) -> None:
        """Start an index.

        Args:
            store: file for the fine thumbnails, read wherever the index is used.
        """
        self._store = store
        self._bits = np.zeros((0, 15), np.uint64)
        self._coarse = np.zeros((0, _COARSE, _COARSE), np.uint8)
        self._chroma = np.zeros((0, 2, _GRID, _GRID), np.uint8)
        self._sizes = np.zeros((0, 2), np.int64)

    def extend(self, pictures: list[PictureHash]) -> range:
        """Add pictures; returns their numbers."""
        first = len(self._bits)
        with self._store.open("ab") as file:
            for picture in pictures:
                file.write(np.ascontiguousarray(picture.fine).tobytes())
        if pictures:
            self._bits = np.concatenate([self._bits, [p.bits for p in pictures]])
            self._coarse = np.concatenate([self._coarse, [p.coarse for p in pictures]])
            self._chroma = np.concatenate([self._chroma, [p.chroma for p in pictures]])
            self._sizes = np.concatenate([self._sizes, [p.size for p in pictures]])
        return range(first, first + len(pictures))

    def same(self, picture: PictureHash) -> list[int]:
        """Numbers of the pictures that are this one, cell by cell."""
        apart = np.bitwise_count(self._bits ^ picture.bits).sum(axis=1, dtype=np.int64)
        own = np.bitwise_count(picture.bits).sum(dtype=np.int64)
        ones = np.minimum(np.bitwise_count(self._bits).sum(axis=1, dtype=np.int64), own)
        return self._same_among(np.flatnonzero(apart <= 12 + 0.25 * ones), picture)

    def similar(self, picture: PictureHash, among: range) -> bool:
        """Whether one of some pictures looks like this one on the whole."""
        candidates = np.array(among, dtype=np.int64)
        if self._same_among(candidates, picture):
            return True
        alike = _centred(self._coarse[candidates]) @ _centred(picture.coarse[None])[0]
        return bool((alike >= _MIN_CORRELATION).any())

    def _same_among(self, candidates: np.ndarray, picture: PictureHash) -> list[int]:
        coarse = _distance(self._coarse[candidates], picture.coarse)
        chroma = _distance(self._chroma[candidates], picture.chroma)
        left = candidates[
            (coarse.max(axis=1, initial=0) <= _MAX_COARSE)
            & (coarse.mean(axis=1) <= _MAX_MEAN_COARSE)
            & (chroma.max(axis=1, initial=0) <= _MAX_CHROMA)
        ]
        return [int(number) for number in left if self._is_same(int(number), picture)]

    def _is_same(self, number: int, picture: PictureHash) -> bool:
        """Compare fine thumbnails, at a size at which neither of them is blurred."""
        pixels = np.minimum(self._sizes[number], picture.size)
        width, height = np.clip(pixels / _CELL_PIXELS, _MIN_SIDE, _FINE).astype(int).tolist()
        area = _FINE * _FINE
        fine = np.fromfile(self._store, np.uint8, area, offset=number * area)
        ours, theirs = (
            np.asarray(
                Image.fromarray(thumbnail).resize((width, height), Image.Resampling.BILINEAR),
                np.int16,
            )
            for thumbnail in (picture.fine, fine.reshape(_FINE, _FINE))
        )
        return int(np.abs(ours - theirs).max()) <= _MAX_FINE


def _averages(band: np.ndarray) -> np.ndarray:
    """[16, 16] float averages of [64, 64] cells."""
    step = _COARSE // _GRID
    averages: np.ndarray = band.reshape(_GRID, step, _GRID, step).mean(axis=(1, 3))
    return averages


def _distance(many: np.ndarray, one: np.ndarray) -> np.ndarray:
    distance: np.ndarray = np.abs(many.astype(np.int16) - one).reshape(len(many), one.size)
    return distance


def _centred(coarse: np.ndarray) -> np.ndarray:
    """[M, 4096] unit rows; a flat picture is all zeros, which is like nothing."""
    flat = coarse.reshape(len(coarse), _COARSE * _COARSE).astype(np.float32)
    flat -= flat.mean(axis=1, keepdims=True)
    length = np.linalg.norm(flat, axis=1, keepdims=True)
    centred: np.ndarray = flat / np.where(length < _MIN_STEP * _COARSE, np.inf, length)
    return centred
