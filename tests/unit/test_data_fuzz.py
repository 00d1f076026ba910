"""10,000 damaged rows and pictures: each is kept or dropped for a reason, none is fatal."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mupo_ray.data.images import decode_image, image_extension
from mupo_ray.data.table import DropReason, RowError
from mupo_ray.errors import DataError
from mupo_ray.prepare.column_maps import passed_columns, resolve_columns
from mupo_ray.prepare.rows import PartResult, RowPlan, RowPreparer
from mupo_ray.prepare.sources import open_source

PICTURES = 6_000
ROWS = 4_000
# Bytes that mean something to one parser or another.
_SHARP = b'\x00\n\r\t"\\{}[],:<>\xef\xbb\xbf\xe2\x80\xa8\xff\xd8\xf0\x9f;=&%-'


def damage(content: bytes, rng: np.random.Generator) -> bytes:
    """One to four cuts, flips, repeats, insertions or swaps."""
    damaged = bytearray(content)
    for _ in range(rng.integers(1, 5)):
        at = int(rng.integers(0, len(damaged) + 1))
        size = int(rng.integers(1, 1 + min(40, len(damaged) + 1)))
        match rng.integers(0, 6):
            case 0:
                del damaged[at : at + size]
            case 1:
                damaged[at : at + size] = rng.bytes(size)
            case 2:
                damaged[at:at] = damaged[max(0, at - size) : at]
            case 3:
                damaged[at:at] = bytes([_SHARP[rng.integers(0, len(_SHARP))]]) * size
            case 4:
                damaged[at : at + 1] = bytes([int(rng.integers(0, 256))])
            case _:
                del damaged[at:]
    return bytes(damaged)


def pictures() -> list[bytes]:
    noise = np.random.default_rng(0).integers(0, 255, (24, 20, 3), dtype=np.uint8)
    rgb = Image.fromarray(noise)
    grey16 = Image.fromarray(np.arange(480, dtype=np.uint16).reshape(24, 20) * 100)
    exif = Image.Exif()
    exif[0x0112] = 6
    frames = [rgb.rotate(90 * i).convert("P") for i in range(3)]
    kinds: list[tuple[Image.Image, str, dict[str, object]]] = [
        (rgb, "PNG", {}),
        (rgb.convert("RGBA"), "PNG", {}),
        (rgb.convert("P"), "PNG", {"transparency": 0}),
        (grey16, "PNG", {}),
        (rgb, "JPEG", {"exif": exif}),
        (rgb.convert("CMYK"), "JPEG", {}),
        (rgb, "WEBP", {}),
        (frames[0], "GIF", {"save_all": True, "append_images": frames[1:]}),
        (rgb, "BMP", {}),
        (rgb, "TIFF", {"compression": "tiff_lzw"}),
        (grey16, "TIFF", {}),
        (rgb, "PPM", {}),
        (rgb, "ICO", {"sizes": [(16, 16)]}),
    ]
    found = []
    for picture, kind, options in kinds:
        buffer = io.BytesIO()
        picture.save(buffer, kind, **options)
        found.append(buffer.getvalue())
    return found


@pytest.mark.filterwarnings("ignore")
def test_damaged_pictures_decode_or_are_refused() -> None:
    rng = np.random.default_rng(1)
    whole = pictures()
    outcomes: dict[str, int] = {}
    for number in range(PICTURES):
        encoded = damage(whole[number % len(whole)], rng)
        try:
            image = decode_image(encoded, max_pixels=2**20)
        except RowError as err:
            outcomes[err.reason] = outcomes.get(err.reason, 0) + 1
            assert "\n" not in str(err)
            continue
        outcomes["decoded"] = outcomes.get("decoded", 0) + 1
        assert len(image.rgb) == image.width * image.height * 3
        assert image_extension(encoded)
    assert sum(outcomes.values()) == PICTURES
    assert set(outcomes) <= {"decoded", DropReason.BROKEN_IMAGE, DropReason.IMAGE_TOO_LARGE}
    assert min(outcomes["decoded"], outcomes[DropReason.BROKEN_IMAGE]) > PICTURES / 20


def prepare_file(path: Path, folder: Path, mapping: str) -> list[PartResult]:
    (folder / "spool").mkdir(exist_ok=True)
    source = open_source(str(path), folder / "spool")
    names = resolve_columns(mapping, (), source.columns)
    plan = RowPlan(
        source=source,
        columns=names,
        passed=passed_columns(source.columns, names),
        image_root=None,
        folder=str(folder),
        remove_contaminated=True,
        render=None,
    )
    preparer = RowPreparer(plan, None)
    results = [preparer.prepare(part) for part in source.parts]
    numbers = sorted(n for r in results for n in [*r.rows, *(drop.row for drop in r.drops)])
    assert numbers == list(range(source.num_rows))
    return results


PNG = base64.b64encode(pictures()[0]).decode()
JSON_ROWS = [
    {"problem": "<image>How many?", "image": {"bytes": PNG}, "answer": "7", "id": "a"},
    {"problem": "Which?", "options": ["x", "y", "None"], "answer": "B", "n": 1.5, "deep": [[{}]]},
    {"problem": "<image><image>Same?", "images": ["ok.png", "ok.png"], "answer": "no", "x": None},
    {"question": "\u6797\u2028\U0001f600", "answer": ["a"], "options": "A. 1;B. 2", "hint": "see"},
]


def json_line(number: int) -> bytes:
    return json.dumps(JSON_ROWS[number % 4], ensure_ascii=number % 2 == 0).encode()


def tsv_line(number: int) -> bytes:
    cells = [
        str(number),
        PNG if number % 3 else str(number - 1),
        'a "quoted" one',
        "None",
        "7",
        "A",
    ]
    return "\t".join(cells).encode()


@pytest.mark.parametrize(
    ("suffix", "header", "line", "good", "mapping"),
    [
        ("jsonl", b"", json_line, b'{"problem": "whole", "answer": "1"}', "generic"),
        (
            "tsv",
            b"index\timage\tquestion\tA\tB\tanswer\n",
            tsv_line,
            b"w\t\twhole\t\t\t1",
            "vlmevalkit",
        ),
    ],
    ids=["jsonl", "tsv"],
)
def test_damaged_rows_are_kept_or_dropped(
    tmp_path: Path,
    suffix: str,
    header: bytes,
    line: Callable[[int], bytes],
    good: bytes,
    mapping: str,
) -> None:
    rng = np.random.default_rng(2)
    (tmp_path / "ok.png").write_bytes(pictures()[0])
    kept = dropped = refused = 0
    per_file = 50
    for first in range(0, ROWS // 2, per_file):
        lines = [damage(line(first + i), rng) for i in range(per_file)]
        lines = [piece for damaged in lines for piece in (damaged, good)]
        path = tmp_path / f"rows.{suffix}"
        path.write_bytes(header + b"\n".join(lines) + b"\n")
        try:
            results = prepare_file(path, tmp_path, mapping)
        except DataError as err:
            # A quote that never closes: no row behind it can be told from its cell.
            assert suffix == "tsv" and "never closed" in str(err)
            refused += 1
            continue
        rows = [cells for result in results for cells in result.kept]
        kept += len(rows)
        drops = [drop for result in results for drop in result.drops]
        json.dumps([asdict(drop) for drop in drops], ensure_ascii=False).encode()
        dropped += len(drops)
        # Damage to one line leaves its neighbours alone; a quote in a table may swallow some.
        whole = sum(cells["problem"] == "whole" for cells in rows)
        assert whole >= per_file if suffix == "jsonl" else whole > 0
    assert kept > ROWS // 4 and dropped > ROWS // 8
    assert refused <= ROWS // 2 // per_file
