"""Preparing a source, from files to the prompts that training renders."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import runpy
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from mupo_ray.data.render import PromptRenderer
from mupo_ray.data.table import open_table
from mupo_ray.demo.tiny_model import build_processor
from mupo_ray.errors import DataError
from mupo_ray.prepare.prepare import PrepareConfig, prepare
from mupo_ray.prepare.report import PrepareReport
from mupo_ray.rewards.equality.choices import check_options

JOB = runpy.run_path(str(Path(__file__).parents[2] / "jobs" / "prepare_data.py"))


def png(width: int = 8, height: int = 8, colour: object = (9, 9, 9), mode: str = "RGB") -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, (width, height), colour).save(buffer, "PNG")
    return buffer.getvalue()


def write_jsonl(path: Path, rows: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_tsv(path: Path, rows: list[list[str]]) -> Path:
    path.write_text("".join("\t".join(row) + "\n" for row in rows))
    return path


def run(source: Path, out: Path, **options: object) -> PrepareReport:
    return prepare(PrepareConfig(source=str(source), out=out, **options))


def kept(out: Path) -> list[dict]:
    return pq.read_table(out / "data.parquet").to_pylist()


def content(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


GOOD = {"problem": "<image>How many?", "images": ["ok.png"], "answer": "007"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "ok.png").write_bytes(png())
    return tmp_path / "in"


def test_a_prepared_table_is_read_and_rendered(folder, tmp_path) -> None:
    cells = {**GOOD, "category": "count", "options": ["None", "007"], "level": 3}
    out = tmp_path / "out"
    run(write_jsonl(folder / "rows.jsonl", [cells]), out)
    (row,) = open_table(out).read([0])
    sha256 = hashlib.sha256(png()).hexdigest()
    assert (row.problem, row.answer) == ("<image>How many?\nOptions:\nA. None\nB. 007", "007")
    assert row.images[0].path == f"images/{sha256[:2]}/{sha256}.png"
    assert check_options(row.meta["options"]) == {"A": "None", "B": "007"}
    assert (row.meta["category"], row.meta["level"]) == ("count", "3")
    build_processor().save_pretrained(tmp_path / "model")
    renderer = PromptRenderer.from_pretrained(str(tmp_path / "model"), max_prompt_tokens=64)
    prompt = renderer.render(row, position=0)
    assert prompt.images[0].sha256 == sha256
    assert prompt.prompt_id == row.meta["prompt_id"]


def test_a_picture_is_stored_once_however_it_comes(folder, tmp_path) -> None:
    encoded = base64.b64encode(png()).decode()
    rows = [GOOD, {**GOOD, "problem": "<image><image>Same?", "images": ["ok.png", "ok.png"]}]
    rows += [{**GOOD, "answer": "8", "images": {"bytes": encoded}}]
    report = run(write_jsonl(folder / "rows.jsonl", rows), tmp_path / "out")
    assert (report.rows_kept, report.images_stored) == (3, 1)
    paths = {image["path"] for row in kept(tmp_path / "out") for image in row["images"]}
    assert len(paths) == 1
    assert (tmp_path / "out" / paths.pop()).read_bytes() == png()


def test_every_drop_is_counted_with_its_row(folder, tmp_path) -> None:
    (folder / "cut.png").write_bytes(png(64, 64)[:60])
    (folder / "long.png").write_bytes(png(2, 402))
    rows = [
        {**GOOD, "answer": " "},
        GOOD,
        {**GOOD, "id": "r2", "images": ["cut.png"]},
        {**GOOD, "problem": "<image><image>q"},
        {**GOOD, "images": ["long.png"]},
        {"problem": " ", "answer": "1"},
        {**GOOD, "options": "either"},
        {"problem": "no picture", "answer": "1"},
        {"problem": "q", "answer": "1", "figure": "ok.png"},
        GOOD,
    ]
    report = run(write_jsonl(folder / "rows.jsonl", rows), tmp_path / "out")
    assert report.dropped_rows == {
        "empty_answer": [0],
        "broken_image": [2],
        "placeholders": [3],
        "aspect_ratio": [4],
        "empty_problem": [5],
        "bad_options": [6],
        "unmapped_image": [8],
    }
    assert (report.rows_in, report.rows_kept, report.rows_text_only) == (10, 3, 1)
    assert report.repeated == [9]
    written = json.loads((tmp_path / "out" / "report.json").read_text())
    assert written["rows_dropped"] == 7 and written["repeated_rows"] == [9]
    (message,) = written["dropped"]["broken_image"]["messages"]
    assert (message["row"], message["id"], message["where"]) == (2, "r2", "line 3")
    assert "image 0: image of 60 bytes cannot be decoded" in message["message"]
    assert "broken_image" in report.text() and "row 2, line 3, id r2" in report.first_messages()


def test_b05_long_pictures_are_reported_and_the_rest_goes_on(folder, tmp_path) -> None:
    for name, height in (("r201", 804), ("r200", 800)):
        (folder / f"{name}.png").write_bytes(png(4, height))
    rows = [{**GOOD, "id": n, "images": [f"{n}.png"]} for n in ("r201", "r200", "ok")]
    report = run(write_jsonl(folder / "rows.jsonl", rows), tmp_path / "out")
    (drop,) = report.drops["aspect_ratio"]
    assert drop.row_id == "r201" and "aspect ratio of 201" in drop.message
    assert [row["id"] for row in kept(tmp_path / "out")] == ["r200", "ok"]


def test_b07_a_missing_file_is_skipped_or_with_strict_an_error(folder, tmp_path, capsys) -> None:
    source = write_jsonl(folder / "rows.jsonl", [{**GOOD, "images": ["no/such.png"]}, GOOD])
    out = tmp_path / "out"
    arguments = [str(source), "--out", str(out)]
    assert JOB["main"]([*arguments, "--strict"]) == 1
    told = capsys.readouterr().err
    assert "'no/such.png'" in told and "line 1" in told and "1 of 2 rows" in told
    assert not out.exists() and names(tmp_path) == ["in"]
    assert JOB["main"](arguments) == 0
    assert "missing_image" in capsys.readouterr().out
    assert [row["answer"] for row in kept(out)] == ["007"]
    assert JOB["main"](arguments) == 1
    assert "--overwrite" in capsys.readouterr().err


def test_b11_rows_share_the_picture_they_refer_to(folder, tmp_path) -> None:
    one, two = (base64.b64encode(png(colour=c)).decode() for c in ((1, 2, 3), (4, 5, 6)))
    rows = [["index", "image", "question", "answer"]]
    rows += [["1", one, "q1", "4"], ["2", "1", "q2", "5"], ["10", "11", "q3", "6"]]
    rows += [["11", two, "q4", "7"], ["12", "99", "q5", "8"]]
    report = run(write_tsv(folder / "set.tsv", rows), tmp_path / "out", mapping="vlmevalkit")
    (drop,) = report.drops["missing_image"]
    assert drop.row_id == "12" and "99" in drop.message
    paths = {row["index"]: row["images"][0]["path"] for row in kept(tmp_path / "out")}
    assert paths["1"] == paths["2"] != paths["10"] == paths["11"]
    assert report.images_stored == 2


def test_b12_a_limit_inside_the_image_tokens_drops_the_row(folder, tmp_path) -> None:
    build_processor().save_pretrained(tmp_path / "model")
    (folder / "large.png").write_bytes(png(280, 280))
    source = write_jsonl(folder / "rows.jsonl", [{**GOOD, "images": ["large.png"]}, GOOD])
    options = {"model": str(tmp_path / "model"), "max_prompt_tokens": 32}
    messages = set()
    for name in ("once", "twice"):
        report = run(source, tmp_path / name, **options)
        assert report.dropped_rows == {"too_long": [0]}
        messages.add(report.drops["too_long"][0].message)
    assert len(messages) == 1 and "at most 32 are allowed" in messages.pop()
    with pytest.raises(DataError, match="needs both --model and --max-prompt-tokens"):
        run(source, tmp_path / "thrice", max_prompt_tokens=32)


def test_b16_each_spelling_of_the_picture_renders_one(folder, tmp_path) -> None:
    spelled = [{"image": "ok.png"}, {"images": ["ok.png"]}, {"images": "ok.png"}]
    spelled += [{"image": {"bytes": base64.b64encode(png()).decode(), "path": None}}]
    for number, cell in enumerate(spelled):
        row = {"problem": "<image>q", "answer": "1", **cell}
        out = tmp_path / f"out{number}"
        run(write_jsonl(folder / f"rows{number}.jsonl", [row]), out)
        assert len(open_table(out).read([0])[0].images) == 1


def test_b18_options_keep_what_reads_as_missing(folder, tmp_path) -> None:
    picture = base64.b64encode(png()).decode()
    header = ["index", "image", "question", "A", "B", "C", "D", "answer"]
    rows = [header, ["1", picture, "Which applies?", "None", "NA", "007", "", "B"]]
    run(write_tsv(folder / "set.tsv", rows), tmp_path / "out", mapping="vlmevalkit")
    (row,) = kept(tmp_path / "out")
    assert json.loads(row["options"]) == {"A": "None", "B": "NA", "C": "007"}
    assert row["answer"] == "B" and row["problem"].endswith("Options:\nA. None\nB. NA\nC. 007")


def test_b20_a_huge_cell_is_a_picture(folder, tmp_path) -> None:
    pixels = np.random.default_rng(2).integers(0, 255, (300, 300, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    cell = base64.b64encode(buffer.getvalue()).decode()
    rows = [["index", "image", "question", "answer"], ["1", cell, "q", "4"]]
    report = run(write_tsv(folder / "set.tsv", rows), tmp_path / "out")
    assert report.rows_kept == 1


def test_b22_rows_without_a_picture_are_counted(folder, tmp_path) -> None:
    picture = base64.b64encode(png()).decode()
    rows = [["index", "image", "question", "answer"]]
    rows += [["1", picture, "q1", "Yes"], ["2", "", "q2", "No"]]
    report = run(write_tsv(folder / "set.tsv", rows), tmp_path / "out")
    assert (report.rows_in, report.rows_kept, report.rows_text_only) == (2, 2, 1)
    assert json.loads((tmp_path / "out" / "report.json").read_text())["rows_text_only"] == 1


def test_b24_jsonl_with_a_mark_and_a_line_separator(folder, tmp_path) -> None:
    lines = ['{"problem": "a\u2028b", "answer": "1"}', '{"problem": "\u6797", "answer": "\uff12"}']
    (folder / "rows.jsonl").write_bytes(("\ufeff" + "\r\n".join(lines)).encode())
    report = run(folder / "rows.jsonl", tmp_path / "out")
    assert report.rows_in == 2
    assert [row["problem"] for row in kept(tmp_path / "out")] == ["a\u2028b", "\u6797"]


def test_the_same_input_gives_the_same_bytes(folder, tmp_path) -> None:
    rows = [{**GOOD, "answer": str(i), "n": i} for i in range(700)] + [{**GOOD, "answer": ""}]
    source = write_jsonl(folder / "rows.jsonl", rows)
    for name in ("one", "two"):
        run(source, tmp_path / name)
    run(source, tmp_path / "two", overwrites=True)
    assert content(tmp_path / "one") == content(tmp_path / "two")
    assert names(tmp_path) == ["in", "one", "two"]
    parquet = pq.ParquetFile(tmp_path / "one" / "data.parquet")
    assert [parquet.metadata.row_group(i).num_rows for i in range(2)] == [512, 188]
    # Preparing what was prepared changes nothing but the report.
    run(tmp_path / "one", tmp_path / "three")
    again = content(tmp_path / "three")
    first = content(tmp_path / "one")
    assert {k: v for k, v in again.items() if k.startswith("images")} == {
        k: v for k, v in first.items() if k.startswith("images")
    }
    assert [r["prompt_id"] for r in kept(tmp_path / "three")] == [
        r["prompt_id"] for r in kept(tmp_path / "one")
    ]


def test_overwriting_leaves_nothing_of_the_earlier_build(folder, tmp_path) -> None:
    (folder / "other.png").write_bytes(png(colour=(1, 1, 1)))
    source = write_jsonl(folder / "rows.jsonl", [GOOD, {**GOOD, "images": ["other.png"]}])
    assert run(source, tmp_path / "out").images_stored == 2
    write_jsonl(source, [GOOD])
    assert run(source, tmp_path / "out", overwrites=True).images_stored == 1
    assert len(list((tmp_path / "out" / "images").glob("*/*"))) == 1
    assert names(tmp_path) == ["in", "out"]


def test_what_fails_half_way_leaves_nothing_behind(folder, tmp_path, monkeypatch) -> None:
    source = write_jsonl(folder / "rows.jsonl", [{**GOOD, "answer": ""}])
    with pytest.raises(DataError, match=r"none of the 1 rows.*\n.*empty_answer"):
        run(source, tmp_path / "out")
    write_jsonl(source, [GOOD])
    run(source, tmp_path / "out")
    before = content(tmp_path / "out")

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mupo_ray.prepare.prepare._write", fail)
    with pytest.raises(KeyboardInterrupt):
        run(source, tmp_path / "out", overwrites=True)
    assert content(tmp_path / "out") == before
    assert names(tmp_path) == ["in", "out"]


def test_image_paths_start_where_they_are_told_to(folder, tmp_path) -> None:
    source = write_jsonl(tmp_path / "elsewhere" / "rows.jsonl", [GOOD])
    with pytest.raises(DataError, match=r"looked in .*elsewhere"):
        run(source, tmp_path / "out")
    assert run(source, tmp_path / "out", image_root=folder).rows_kept == 1


def test_parquet_with_pictures_inside(tmp_path) -> None:
    kind = pa.list_(pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    pictures = [[{"bytes": png(colour=(i, i, i)), "path": None}] for i in range(3)]
    table = pa.table(
        {
            "problem": ["<image>q"] * 3,
            "images": pa.array(pictures, kind),
            "answer": [1, 2, 3],
            "category": pa.array(["a", "b", "a"]).dictionary_encode(),
        }
    )
    pq.write_table(table, tmp_path / "in.parquet")
    report = run(tmp_path / "in.parquet", tmp_path / "out")
    assert (report.rows_kept, report.images_stored) == (3, 3)
    assert [row["answer"] for row in kept(tmp_path / "out")] == ["1", "2", "3"]


def test_a_column_that_would_hide_the_pictures_gets_another_name(folder, tmp_path) -> None:
    row = {"question": "q", "picture": "ok.png", "image": "note", "answer": "1"}
    source = write_jsonl(folder / "rows.jsonl", [row])
    run(source, tmp_path / "out", columns=("images=picture",))
    (cells,) = kept(tmp_path / "out")
    assert cells["raw_image"] == "note" and len(cells["images"]) == 1
    assert open_table(tmp_path / "out").image_column == "images"
    with pytest.raises(DataError, match="would get one name"):
        write_jsonl(source, [{**row, "raw_image": "x"}])
        run(source, tmp_path / "again", columns=("images=picture",))


def test_the_job_names_what_is_wrong(folder, tmp_path, capsys) -> None:
    arguments = [str(folder / "gone.jsonl"), "--out", str(tmp_path / "out")]
    assert JOB["main"](arguments) == 1
    assert "gone.jsonl' does not exist" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
