"""Data files: what fits, what does not and how it is said, and reading rows by number."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mupo_ray.data.table import DropReason, ImageRef, RowError, open_table, prompt_id
from mupo_ray.errors import DataError

IMAGES = pa.list_(pa.struct([("bytes", pa.binary()), ("path", pa.string())]))


def write(path: Path, first: int, count: int, **options: object) -> Path:
    numbers = range(first, first + count)
    table = pa.table(
        {
            "problem": [f"<image>q{n}" for n in numbers],
            "images": pa.array([[{"bytes": b"%d" % n, "path": None}] for n in numbers], IMAGES),
            "answer": [str(n) for n in numbers],
            "source": [f"s{n}" if n % 2 else None for n in numbers],
            "weight": [0.5] * count,
        }
    )
    pq.write_table(table, path, **options)
    return path


def test_rows_by_number_over_files_and_row_groups(tmp_path) -> None:
    write(tmp_path / "b.parquet", 5, 4, row_group_size=3)
    write(tmp_path / "a.parquet", 0, 5, row_group_size=2)
    for spec in (tmp_path, tmp_path / "*.parquet"):
        table = open_table(spec)
        assert table.num_rows == 9
        rows = table.read([8, 0, 5, 4, 8])
        assert [row.index for row in rows] == [8, 0, 5, 4, 8]
        assert [row.answer for row in rows] == ["8", "0", "5", "4", "8"]
        assert rows[0].images == (ImageRef(encoded=b"8"),)
        assert rows[2].meta == {"source": "s5"} and rows[1].meta == {}
        assert rows[0].folder == str(tmp_path)
    with pytest.raises(IndexError, match="0 to 8"):
        table.read([9])


def test_table_travels_between_processes(tmp_path) -> None:
    table = pickle.loads(pickle.dumps(open_table(write(tmp_path / "a.parquet", 0, 3))))
    assert table.read([2])[0].problem == "<image>q2"


@pytest.mark.parametrize(
    ("columns", "complaints"),
    [
        ({"problem": ["p"], "images": [["x"]]}, ["lacks the column answer", "problem, images"]),
        ({"question": ["p"]}, ["problem, answer", "it has question"]),
        ({"problem": ["p"], "answer": [3]}, ["answer", "int64", "expected string"]),
        ({"problem": ["p"], "answer": ["1"], "images": [[1.5]]}, ["images", "double", "struct"]),
        ({"problem": ["p"], "answer": ["1"], "images": [["x"]], "image": ["x"]}, ["both"]),
        ({"problem": [], "answer": []}, ["no rows"]),
    ],
    ids=["no_answer", "other_names", "number", "image_type", "two_image_columns", "empty"],
)
def test_unfit_files_are_named(tmp_path, columns: dict, complaints: list[str]) -> None:
    path = tmp_path / "bad.parquet"
    schema = (
        None if columns.get("problem") != [] else pa.schema(dict.fromkeys(columns, pa.string()))
    )
    pq.write_table(pa.table(columns, schema=schema), path)
    with pytest.raises(DataError) as caught:
        open_table(path)
    for text in [*complaints, "bad.parquet"]:
        assert text in str(caught.value)


def test_missing_and_foreign_files(tmp_path) -> None:
    with pytest.raises(DataError, match=r"no\.parquet.*does not exist"):
        open_table(tmp_path / "no.parquet")
    with pytest.raises(DataError, match="matches no file"):
        open_table(tmp_path / "*.parquet")
    with pytest.raises(DataError, match="holds no"):
        open_table(tmp_path)
    (tmp_path / "text.parquet").write_text("hello")
    with pytest.raises(DataError, match=r"text\.parquet as Parquet"):
        open_table(tmp_path)


def test_files_of_a_set_must_agree_on_images(tmp_path) -> None:
    write(tmp_path / "a.parquet", 0, 2)
    pq.write_table(pa.table({"problem": ["p"], "answer": ["1"]}), tmp_path / "b.parquet")
    with pytest.raises(DataError, match=r"b\.parquet has image column None"):
        open_table(tmp_path)


def test_a_file_that_vanishes_is_named(tmp_path) -> None:
    table = open_table(write(tmp_path / "a.parquet", 0, 2))
    (tmp_path / "a.parquet").unlink()
    with pytest.raises(DataError, match=r"cannot read .*a\.parquet"):
        table.read([0])


@pytest.mark.parametrize(
    ("name", "cell", "kind"),
    [
        ("image", "ok.png", pa.string()),
        ("images", ["ok.png"], pa.list_(pa.string())),
        ("image", {"bytes": None, "path": "ok.png"}, IMAGES.value_type),
        ("images", "ok.png", pa.string()),
        ("images", [{"bytes": None, "path": "ok.png"}], pa.large_list(IMAGES.value_type)),
    ],
)
def test_b16_every_spelling_of_one_image_is_one_image(tmp_path, name, cell, kind) -> None:
    table = pa.table({"problem": ["<image>q"], "answer": ["1"], name: pa.array([cell], kind)})
    pq.write_table(table, tmp_path / "one.parquet")
    assert open_table(tmp_path).read([0])[0].images == (ImageRef(path="ok.png"),)


def test_text_only_and_null_cells(tmp_path) -> None:
    table = pa.table({"problem": pa.array([None, "q"]), "answer": pa.array(["1", None])})
    pq.write_table(table, tmp_path / "text.parquet")
    rows = open_table(tmp_path).read([0, 1])
    assert [(row.problem, row.answer, row.images) for row in rows] == [("", "1", ()), ("q", "", ())]


def test_prompt_id_is_the_content() -> None:
    # sha256 over each part with its length in 8 little-endian bytes in front.
    assert prompt_id("q", "1", ["ab"]) == "f7011cbdb37f8f38"
    ids = {
        prompt_id("ab", "c", []),
        prompt_id("a", "bc", []),
        prompt_id("ab", "", ["c"]),
        prompt_id("ab", "c", ["d"]),
    }
    assert len(ids) == 4


def test_row_errors_keep_their_reason_when_pickled() -> None:
    error = pickle.loads(pickle.dumps(RowError(DropReason.TOO_LONG, "row 3: long")))
    assert error.reason is DropReason.TOO_LONG and str(error) == "row 3: long"
    assert isinstance(error, DataError)
