"""Data sets by the `datasets` library: its files on disk, and its hub where there is no network."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from PIL import Image

from mupo_ray.errors import DataError
from mupo_ray.prepare.prepare import PrepareConfig, prepare
from mupo_ray.prepare.sources import find_source_files


def test_b16_what_the_library_saves_is_read_without_it(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    buffer = io.BytesIO()
    Image.new("RGB", (5, 4), (9, 8, 7)).save(buffer, "PNG")
    features = datasets.Features(
        {
            "images": datasets.Sequence(datasets.Image()),
            "problem": datasets.Value("string"),
            "answer": datasets.Value("string"),
            "choices": datasets.Sequence(datasets.Value("string")),
        }
    )
    rows = [
        {
            "images": [{"bytes": buffer.getvalue(), "path": None}],
            "problem": f"<image>q{i}",
            "answer": "007",
            "choices": ["None", "NA"],
        }
        for i in range(3)
    ]
    made = datasets.Dataset.from_list(rows, features=features)
    datasets.DatasetDict({"train": made, "test": made.select([2])}).save_to_disk(tmp_path / "set")
    report = prepare(PrepareConfig(source=f"{tmp_path / 'set'}@train", out=tmp_path / "train"))
    assert (report.rows_kept, report.rows_text_only, report.images_stored) == (3, 0, 1)
    report = prepare(PrepareConfig(source=f"{tmp_path / 'set'}@test", out=tmp_path / "test"))
    assert report.rows_kept == 1


def test_the_hub_without_a_network_is_one_clear_message(tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"cannot load owner/name@train.*hf download") as caught:
        find_source_files("owner/name@train")
    assert "\n" not in str(caught.value) and "FOLDER@train" in str(caught.value)


def test_a_hub_id_without_the_library_names_the_extra(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r'pip install "mupo_ray\[hub\]"'):
        find_source_files("owner/name:config@test")
