"""Fingerprints of files: whether a model or a set is the one that it was."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

# Larger files are read in pieces: a step of training changes weights everywhere in them.
_WHOLE_BYTES = 64 * 2**20
_NUM_PIECES = 16
_PIECE_BYTES = 2**20


def fingerprint_of(files: Iterable[Path]) -> str:
    """Hash over names, sizes and contents, 16 hex digits; folders and times do not count.

    Args:
        files: in any order. Of one over 64 MiB, 16 pieces of 1 MiB spread evenly are read.
    """
    digest = hashlib.sha256()
    for path in sorted(files, key=lambda path: path.name):
        size = path.stat().st_size
        digest.update(f"{path.name}\0{size}\0".encode())
        with path.open("rb") as stream:
            if size <= _WHOLE_BYTES:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
                continue
            for piece in range(_NUM_PIECES):
                stream.seek(piece * (size - _PIECE_BYTES) // (_NUM_PIECES - 1))
                digest.update(stream.read(_PIECE_BYTES))
    return digest.hexdigest()[:16]


def fingerprint_of_model(folder: Path) -> str:
    """Fingerprint of what decides a model's responses: weights, configs, tokenizer, processor."""
    kinds = (".json", ".safetensors", ".bin", ".jinja", ".txt", ".model")
    return fingerprint_of(p for p in folder.iterdir() if p.is_file() and p.suffix in kinds)
