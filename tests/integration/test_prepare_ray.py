"""Preparing by Ray Data tasks: the same bytes as in one process, and errors in one line."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mupo_ray.errors import DataError
from mupo_ray.prepare import sources
from mupo_ray.prepare.prepare import PrepareConfig, prepare, workers_for

pytestmark = pytest.mark.usefixtures("ray_local")


def write_rows(folder: Path, count: int) -> Path:
    """Rows over five pictures, every ninth of them bad."""
    folder.mkdir()
    for i in range(5):
        pixels = np.random.default_rng(i).integers(0, 255, (40, 50, 3), dtype=np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "PNG")
        (folder / f"{i}.png").write_bytes(buffer.getvalue())
    rows = [
        {
            "problem": f"<image>Question {i}?",
            "images": ["gone.png" if i % 9 == 4 else f"{i % 5}.png"],
            "answer": str(i),
        }
        for i in range(count)
    ]
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def content(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_tasks_write_the_same_bytes_as_one_process(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(sources, "PART_ROWS", 16)
    source = write_rows(tmp_path / "in", 200)
    for workers in (1, 3):
        config = PrepareConfig(
            source=str(source),
            out=tmp_path / f"out{workers}",
            workers=workers,
            timeout_s=180,
            against=(str(write_rows(tmp_path / f"eval{workers}", 2)),),
            removes_contaminated=False,
        )
        report = prepare(config)
        assert (report.rows_in, report.images_stored) == (200, 5)
        assert report.dropped_rows == {"missing_image": list(range(4, 200, 9))}
        assert len(report.contaminated) == sum(i % 5 < 2 and i % 9 != 4 for i in range(200))
    one, three = content(tmp_path / "out1"), content(tmp_path / "out3")
    reports = [json.loads(found.pop("report.json")) for found in (one, three)]
    for report in reports:
        for found in [*report["contamination"]["against"], *report["contamination"]["rows"]]:
            found.pop("name", None), found.pop("set_name", None)
    assert reports[0] == reports[1]
    assert one == three


def test_a_source_that_vanishes_ends_in_one_line(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(sources, "PART_ROWS", 16)
    source = write_rows(tmp_path / "in", 64)
    open_source = sources.open_source

    def open_and_lose(spec: str, spool: Path) -> sources.Source:
        found = open_source(spec, spool)
        source.unlink()
        return found

    monkeypatch.setattr("mupo_ray.prepare.prepare.open_source", open_and_lose)
    with pytest.raises(DataError, match=r"cannot read .*rows\.jsonl") as caught:
        prepare(PrepareConfig(source=str(source), out=tmp_path / "out", workers=2, timeout_s=180))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_small_sources_do_without_ray() -> None:
    part = sources.Part(
        file="f", kind=sources.FileKind.JSONL, first_row=0, num_rows=1, start=0, stop=1
    )
    assert workers_for([part] * 31, None) == 1
    assert workers_for([part] * 32, None) >= 1
    assert workers_for([part] * 3, 8) == 3
