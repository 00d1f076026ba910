"""docs/data.md: every example in its tables does what the page says."""

from __future__ import annotations

import base64
import io
import json
import re
import runpy
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from mupo_ray.data.images import load_image
from mupo_ray.data.table import DropReason, open_table
from mupo_ray.prepare.column_maps import MAPPINGS
from mupo_ray.prepare.prepare import PrepareConfig, prepare
from mupo_ray.prepare.report import PrepareReport

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def table(title: str, first_column: str) -> list[list[str]]:
    """Cells of the table whose first column has this name."""
    lines = section(title).split(f"| {first_column} |", 1)[1].splitlines()[2:]
    rows = [line for line in lines[: lines.index("")] if line.startswith("|")]
    split = [re.split(r"(?<!\\)\|", row)[1:-1] for row in rows]
    return [[cell.strip().replace("\\|", "|") for cell in row] for row in split]


def quoted(cell: str) -> str:
    """What stands between the first backticks of a cell."""
    return cell.split("`")[1]


def png(mode: str, ground: object, ink: object = None) -> Image.Image:
    """8 x 8 with a 2 x 2 centre."""
    picture = Image.new(mode, (8, 8), ground)
    if ink is not None:
        picture.paste(ink, (3, 3, 5, 5))
    return picture


def encode(picture: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def pictures() -> dict[str, bytes]:
    coarse = np.random.default_rng(0).integers(0, 255, (6, 8, 3), dtype=np.uint8)
    photo = Image.fromarray(coarse).resize((160, 120), Image.Resampling.BICUBIC)
    palette = png("P", 1)
    palette.putpalette([0, 0, 0, 0, 0, 250, 200, 0, 0])
    clear = png("P", 0, 2)
    clear.putpalette([0, 0, 0, 0, 0, 0, 200, 0, 0])
    turned = Image.new("RGB", (24, 16))
    turned.paste((255, 0, 0), (0, 0, 6, 16))
    exif = Image.Exif()
    exif[0x0112] = 6
    frames = [Image.new("RGB", (4, 4), c) for c in ((255, 0, 0), (0, 255, 0))]
    grey = Image.fromarray(np.array([[0, 0x80FF, 0xFFFF]], dtype=np.uint16))
    bomb = bytearray(encode(Image.new("1", (8193, 8192)), "PNG"))
    return {
        "dot.png": encode(png("RGBA", (0, 0, 0, 0), (0, 0, 0, 255)), "PNG"),
        "photo.jpg": encode(photo, "JPEG", quality=90),
        "photo.webp": encode(photo, "WEBP", quality=80),
        "blank.png": encode(Image.new("RGB", (90, 60), "white"), "PNG"),
        "palette.png": encode(palette, "PNG"),
        "palette_clear.png": encode(clear, "PNG", transparency=0),
        "cmyk.jpg": encode(Image.new("CMYK", (8, 8), (255, 0, 0, 0)), "JPEG", quality=100),
        "grey16.png": encode(grey, "PNG"),
        "turned.jpg": encode(turned, "JPEG", exif=exif, quality=95, subsampling=0),
        "moving.gif": encode(frames[0], "GIF", save_all=True, append_images=frames[1:]),
        "pixel.png": encode(Image.new("RGB", (1, 1), (5, 6, 7)), "PNG"),
        "long200.png": encode(Image.new("RGB", (4, 800)), "PNG"),
        "long201.png": encode(Image.new("RGB", (4, 804)), "PNG"),
        "bomb.png": bytes(bomb),
        "cut.jpg": encode(photo, "JPEG")[:900],
        "text.png": b"not a picture",
        "empty.png": b"",
        "float.tiff": encode(Image.new("F", (2, 2), 0.5), "TIFF"),
        "drawing.eps": encode(photo, "EPS"),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("docs")
    for name, encoded in pictures().items():
        (found / name).write_bytes(encoded)
    return found


@pytest.fixture
def run(folder: Path, tmp_path: Path) -> Callable[..., PrepareReport]:
    """Prepare lines of JSONL, with one good row in front."""

    def prepare_lines(*lines: str, **options: object) -> PrepareReport:
        source = folder / "rows.jsonl"
        good = '{"problem": "good", "answer": "1"}'
        source.write_text("\n".join([good, *lines]) + "\n", encoding="utf-8")
        return prepare(PrepareConfig(source=str(source), out=tmp_path / "out", **options))

    return prepare_lines


@pytest.mark.parametrize("cells", table("Rows", "kept"), ids=lambda cells: cells[0])
def test_rows_that_are_kept(run, tmp_path, cells: list[str]) -> None:
    line, expected = quoted(cells[1]), json.loads(quoted(cells[2]))
    report = run(line)
    assert report.rows_dropped == 0
    row = pq.read_table(tmp_path / "out" / "data.parquet").to_pylist()[1]
    row["pictures"] = len(row["images"])
    assert {name: row[name] for name in expected} == expected


@pytest.mark.parametrize("cells", table("Rows", "dropped"), ids=lambda cells: cells[0])
def test_rows_that_are_dropped(run, cells: list[str]) -> None:
    reason = quoted(cells[2])
    assert reason in set(DropReason)
    if cells[1].startswith("with"):
        return  # Tests of their own: test_contamination.py and b12 in test_prepare.py.
    assert run(quoted(cells[1])).dropped_rows == {reason: [1]}


def test_every_reason_is_on_the_page() -> None:
    named = {quoted(cells[2]) for cells in table("Rows", "dropped")}
    named |= {quoted(c[2]) for c in table("Pictures", "picture") if c[2].startswith("`")}
    assert set(DropReason) <= named


@pytest.mark.parametrize("cells", table("Pictures", "picture"), ids=lambda cells: cells[0])
def test_pictures(run, tmp_path, cells: list[str]) -> None:
    name = quoted(cells[1])
    report = run(json.dumps({"problem": "<image>q", "images": [name], "answer": "1"}))
    if "is `" not in cells[2] and cells[2] != "kept":
        assert report.dropped_rows == {quoted(cells[2]): [1]}
        return
    assert report.rows_dropped == 0
    row = open_table(tmp_path / "out").read([1])[0]
    image = load_image(row.images[0], row.folder)
    for place, colour in re.findall(r"`([\d, ]+)` is `([\d, ]+)`", cells[2]):
        x, y = map(int, place.split(","))
        start = (y * image.width + x) * 3
        expected = [int(part) for part in colour.split(",")]
        assert np.allclose(list(image.rgb[start : start + 3]), expected, atol=6)


def test_the_page_shows_all_example_pictures() -> None:
    shown = {quoted(cells[1]) for cells in table("Pictures", "picture")}
    assert shown | {"blank.png"} == set(pictures())


def test_the_table_of_vlmevalkit(folder, tmp_path) -> None:
    text = section("Sources").split("```tsv\n")[1].split("```")[0]
    expected = json.loads(section("Sources").split("```json\n")[1].split("```")[0])
    dot = base64.b64encode(pictures()["dot.png"]).decode()
    source = tmp_path / "set.tsv"
    source.write_text(text.replace("{dot.png as base64}", dot), encoding="utf-8")
    report = prepare(PrepareConfig(source=str(source), out=tmp_path / "out", mapping="vlmevalkit"))
    rows = pq.read_table(tmp_path / "out" / "data.parquet").to_pylist()
    assert [row["index"] for row in rows] == expected["kept"]
    dropped = {reason: [d.row_id for d in drops] for reason, drops in report.drops.items()}
    assert dropped == expected["dropped"]
    assert report.rows_text_only == expected["text_only"]
    assert report.images_stored == expected["images_stored"]
    options = {row["index"]: json.loads(row["options"]) for row in rows}
    assert {name: options[name] for name in expected["options"]} == expected["options"]


@pytest.mark.parametrize(
    "cells", table("Evaluation rows in training data", "evaluation row"), ids=lambda cells: cells[2]
)
def test_evidence(run, folder, cells: list[str]) -> None:
    eval_set = folder / "eval.jsonl"
    eval_set.write_text(quoted(cells[0]) + "\n")
    report = run(quoted(cells[1]), against=(str(eval_set),))
    found = [(c.row, c.evidence.kind) for c in report.contaminated]
    assert found == ([] if cells[2] == "clean" else [(1, quoted(cells[2]))])


def test_the_table_of_mappings() -> None:
    rows = {quoted(cells[0]): cells[1:] for cells in table("Columns", "mapping")}
    assert list(rows) == list(MAPPINGS)
    for name, cells in rows.items():
        columns = MAPPINGS[name]
        for thing, cell in zip(("problem", "images", "", "category", "source"), cells, strict=True):
            if thing:
                assert tuple(re.findall(r"`([^`]+)`", cell)) == getattr(columns, thing), (
                    name,
                    thing,
                )
        shown = re.findall(r"`([^`]+)`", cells[2])
        assert shown[:1] == list(columns.options[:1])
        assert ("not shown" in cells[2]) is not columns.show_options


def test_commands_on_the_page_are_ones_that_the_job_takes() -> None:
    parser = runpy.run_path(str(ROOT / "jobs" / "prepare_data.py"))["_parser"]()
    commands = [
        line for line in PAGE.splitlines() if line.startswith("python jobs/prepare_data.py")
    ]
    assert len(commands) >= 7
    for command in commands:
        args = parser.parse_args(shlex.split(command)[2:])
        assert args.source and args.out
