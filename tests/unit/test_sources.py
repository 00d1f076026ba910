"""Sources: every kind of file, its rows and where they are, and files that cannot be read."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from mupo_ray.data.table import DropReason
from mupo_ray.errors import DataError
from mupo_ray.prepare import source_text
from mupo_ray.prepare.sources import PART_ROWS, RawRow, open_source


def read(spec: str | Path, tmp_path: Path) -> list[RawRow]:
    """All rows, part by part as tasks read them."""
    spool = tmp_path / "spool"
    spool.mkdir(exist_ok=True)
    source = open_source(str(spec), spool)
    rows = [row for part in source.parts for row in source.read(part)]
    assert [row.index for row in rows] == list(range(source.num_rows))
    return rows


def cells(rows: Sequence[RawRow], name: str) -> list[object]:
    return [row.cells.get(name) for row in rows]


def put(path: Path, content: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def png(size: tuple[int, int] = (8, 8), colour: tuple[int, int, int] = (9, 9, 9)) -> str:
    buffer = io.BytesIO()
    Image.new("RGB", size, colour).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def test_b24_lines_end_at_line_feeds_only(tmp_path) -> None:
    lines = ['{"problem": "a\u2028b", "answer": "1"}']
    lines += ['{"problem": "\u00e9\u6797", "answer": "\uff12"}', ""]
    rows = read(put(tmp_path / "rows.jsonl", "\ufeff" + "\r\n".join(lines)), tmp_path)
    assert cells(rows, "problem") == ["a\u2028b", "\u00e9\u6797"]
    assert cells(rows, "answer") == ["1", "\uff12"]
    assert [row.where for row in rows] == ["line 1", "line 2"]


def test_jsonl_rows_that_cannot_be_read_stay_in_their_place(tmp_path) -> None:
    lines = [b'{"problem": "one"}', b"", b"{broken", b'["a list"]', b'{"a": "\xff"}']
    lines += [b'{"\\ud800": 1}', b"[" * 100_000, b'{"problem": "last"}']
    rows = read(put(tmp_path / "rows.jsonl", b"\n".join(lines)), tmp_path)
    reasons = [row.error and row.error.reason for row in rows]
    assert reasons == [None, *[DropReason.UNREADABLE_ROW] * 5, None]
    assert rows[1].where == "line 3" and "not JSON" in str(rows[1].error)
    assert "list" in str(rows[2].error) and "UTF-8" in str(rows[3].error)
    assert rows[6].cells == {"problem": "last"}


def test_many_lines_are_many_parts(tmp_path) -> None:
    count = 2 * PART_ROWS + 5
    lines = "".join(json.dumps({"problem": f"q{i}"}) + "\n\n" for i in range(count))
    put(tmp_path / "rows.jsonl", lines)
    source = open_source(str(tmp_path / "rows.jsonl"), tmp_path)
    assert [part.num_rows for part in source.parts] == [PART_ROWS, PART_ROWS, 5]
    last = list(source.read(source.parts[2]))
    assert [row.cells["problem"] for row in last] == [f"q{i}" for i in range(count - 5, count)]
    assert last[0].where == f"line {2 * (count - 5) + 1}"


@pytest.mark.parametrize(
    "text",
    [
        '[{"problem": "a\\n", "n": 1.50}, {"problem": "b"}]',
        '\ufeff[\r\n  {"problem": "a\\n",\r\n   "n": 1.50},\n  {"problem": "b"}\n]\n',
        '{"version": "1", "data": [{"problem": "a\\n", "n": 1.50}, {"problem": "b"}]}',
        '{"problem": "a\\n", "n": 1.50}\n{"problem": "b"}\n',
    ],
    ids=["array", "pretty", "wrapped", "jsonl_called_json"],
)
@pytest.mark.parametrize("chunk", [7, 2**20])
def test_json_rows(tmp_path, monkeypatch, text: str, chunk: int) -> None:
    monkeypatch.setattr(source_text, "_CHUNK_CHARS", chunk)
    rows = read(put(tmp_path / "rows.json", text), tmp_path)
    assert cells(rows, "problem") == ["a\n", "b"]
    assert rows[0].cells["n"].text == "1.50"
    assert rows[0].folder == str(tmp_path)


def test_json_objects_by_name_and_a_single_row(tmp_path) -> None:
    rows = read(put(tmp_path / "named.json", '{"7": {"problem": "a"}, "8": {}}'), tmp_path)
    assert [row.cells for row in rows] == [{"_key": "7", "problem": "a"}, {"_key": "8"}]
    one = '{"problem": "a", "images": ["x.png"], "answer": "1"}'
    rows = read(put(tmp_path / "one.json", one), tmp_path)
    assert [row.cells["images"] for row in rows] == [["x.png"]]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('[{"problem": "a"}, {"problem": ', "not JSON at character 19"),
        ('[{"problem": "a"} {"problem": "b"}]', "expected ',', got '{'"),
        ('[{"problem": "a"}] and more', "more text behind the end"),
        ("hello", "expected an array or an object"),
        ("", "expected an array or an object"),
        ("[" * 100_000, "not JSON"),
        ("[]", "no rows"),
    ],
)
def test_broken_json_names_the_place(tmp_path, text: str, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        read(put(tmp_path / "rows.json", text), tmp_path)


def test_b11_an_image_cell_may_name_another_row(tmp_path) -> None:
    one, two = png(colour=(1, 2, 3)), png(colour=(4, 5, 6))
    table = [("1", one), ("2", "1"), ("10", "11"), ("11", two), ("12", "99"), ("13", "2")]
    text = "index\timage\tquestion\tanswer\n" + "".join(f"{i}\t{m}\tq\t4\n" for i, m in table)
    rows = read(put(tmp_path / "set.tsv", text), tmp_path)
    assert cells(rows[:4], "image") == [one, one, two, two]
    assert [row.error and row.error.reason for row in rows[4:]] == [DropReason.MISSING_IMAGE] * 2
    assert "'99'" in str(rows[4].error) and "no picture itself" in str(rows[5].error)
    assert rows[4].cells["index"] == "12" and rows[4].where == "line 6"


def test_b18_cells_that_read_as_missing_are_texts(tmp_path) -> None:
    text = "index\tquestion\tA\tB\tC\tD\tanswer\n1\tq\tNone\tNA\t007\t\tnull\n"
    (row,) = read(put(tmp_path / "set.tsv", text), tmp_path)
    assert [row.cells[name] for name in "ABCD"] == ["None", "NA", "007", None]
    assert row.cells["answer"] == "null"


def test_b20_a_cell_of_a_large_picture(tmp_path) -> None:
    pixels = np.random.default_rng(1).integers(0, 255, (280, 320, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    cell = base64.b64encode(buffer.getvalue()).decode()
    assert len(cell) > 350_000
    text = f"index\timage\tquestion\tanswer\n1\t{cell}\tq\t4\n"
    (row,) = read(put(tmp_path / "set.tsv", text), tmp_path)
    assert row.cells["image"] == cell


def test_tsv_cells_with_tabs_line_feeds_and_quotes(tmp_path) -> None:
    text = '\ufeffindex\tquestion\tanswer\r\n1\t"a\tb\n""c"" \u2028"\t4\r\n2\tplain\t5\r\n'
    rows = read(put(tmp_path / "set.tsv", text), tmp_path)
    assert cells(rows, "question") == ['a\tb\n"c" \u2028', "plain"]
    assert [row.where for row in rows] == ["line 2", "line 4"]


def test_tsv_rows_of_another_width(tmp_path) -> None:
    text = b"index\tquestion\n1\tq\n2\n3\tq\textra\n\n4\t\xff\n5\tq\n"
    rows = read(put(tmp_path / "set.tsv", text), tmp_path)
    assert [row.error is None for row in rows] == [True, False, False, True, True]
    assert "1 cells, but the header names 2" in str(rows[1].error)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is empty"),
        ("index\tindex\n1\t2\n", "index twice"),
        ("index\tquestion\n", "no rows"),
        ('index\tquestion\n1\t"never closed\n2\tq\n3\tq\n', "line 2 and never closed"),
    ],
)
def test_tables_that_cannot_be_read(tmp_path, text: str, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        read(put(tmp_path / "set.tsv", text), tmp_path)


def test_parquet_files_of_a_glob_or_folder(tmp_path) -> None:
    for number, name in enumerate(["a", "b"]):
        table = pa.table({"problem": [f"{name}{i}" for i in range(5)], "n": [number] * 5})
        pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=2)
    for spec in (tmp_path, tmp_path / "*.parquet"):
        rows = read(spec, tmp_path)
        assert cells(rows, "problem") == [f"{name}{i}" for name in "ab" for i in range(5)]
        assert rows[7].cells["n"] == 1 and rows[7].where == "row 7"


def shard(path: Path, problems: list[str]) -> None:
    """A file as `datasets` keeps it: an Arrow stream of small batches."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"problem": problems})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)


def test_what_save_to_disk_writes(tmp_path) -> None:
    for split, shards in (("train", [["a", "b", "c"], ["d"]]), ("test", [["e"]])):
        names = [f"data-{i:05d}-of-{len(shards):05d}.arrow" for i in range(len(shards))]
        for name, problems in zip(names, shards, strict=True):
            shard(tmp_path / "set" / split / name, problems)
        files = [{"filename": name} for name in names]
        put(tmp_path / "set" / split / "state.json", json.dumps({"_data_files": files}))
    put(tmp_path / "set" / "dataset_dict.json", '{"splits": ["train", "test"]}')
    assert cells(read(f"{tmp_path / 'set'}@train", tmp_path), "problem") == list("abcd")
    assert cells(read(tmp_path / "set" / "test", tmp_path), "problem") == ["e"]
    with pytest.raises(DataError, match=r"splits train, test and no split.*set@SPLIT"):
        read(tmp_path / "set", tmp_path)
    with pytest.raises(DataError, match="no split 'val'"):
        read(f"{tmp_path / 'set'}@val", tmp_path)


def test_a_snapshot_of_a_hub_repository(tmp_path) -> None:
    names = [
        "data/test-00000-of-00002-6a611c71596db30f.parquet",
        "data/testmini-00000-of-00001.parquet",
    ]
    for name in [*names, names[0].replace("00000", "00001")]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        pq.write_table(pa.table({"problem": [name]}), tmp_path / name)
    put(tmp_path / "dataset_info.json", "{}")
    put(tmp_path / ".cache" / "more.parquet", "no parquet")
    assert len(read(f"{tmp_path}@test", tmp_path)) == 2
    assert cells(read(f"{tmp_path}@testmini", tmp_path), "problem") == [names[1]]
    with pytest.raises(DataError, match="splits test, testmini"):
        read(tmp_path, tmp_path)
    with pytest.raises(DataError, match="split 'dev'; it has test, testmini"):
        read(f"{tmp_path}@dev", tmp_path)


def test_a_folder_of_pictures_with_jsonl(tmp_path) -> None:
    put(tmp_path / "pictures" / "metadata.jsonl", '{"file_name": "a.png", "problem": "q"}\n')
    put(tmp_path / "pictures" / "a.png", b"")
    (row,) = read(tmp_path / "pictures", tmp_path)
    assert row.cells["file_name"] == "a.png" and row.folder == str(tmp_path / "pictures")


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("gone.jsonl", "does not exist"),
        ("gone/*.jsonl", "matches no file"),
        ("owner/name", "owner/name@train"),
        ("rows.csv", "unknown kind of file '.csv'"),
        ("bad.parquet", r"bad\.parquet as parquet"),
        ("bad.arrow", r"bad\.arrow as arrow"),
        ("empty", "holds no .parquet"),
        ("mixed", "several kinds"),
    ],
)
def test_sources_that_are_none(tmp_path, monkeypatch, spec: str, complaint: str) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("rows.csv", "bad.parquet", "bad.arrow", "mixed/a.tsv", "mixed/b.jsonl"):
        put(tmp_path / name, "text")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=complaint):
        read(spec, tmp_path)


def test_a_file_that_vanishes_is_named(tmp_path) -> None:
    source = open_source(str(put(tmp_path / "rows.jsonl", '{"problem": "a"}\n')), tmp_path)
    (tmp_path / "rows.jsonl").unlink()
    with pytest.raises(DataError, match=r"cannot read .*rows\.jsonl"):
        list(source.read(source.parts[0]))
