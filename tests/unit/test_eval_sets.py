"""Sets as users name them: names, layouts, presets with a right and a wrong file, prompts."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from mupo_ray.data.chat import ChatRenderer
from mupo_ray.data.stream import Dropped, iter_prompts
from mupo_ray.errors import ConfigError, DataError
from mupo_ray.evaluation.sets import EvalSource, SetSpec, open_set, parse_set, parse_sets
from mupo_ray.prepare.column_maps import MAPPINGS
from mupo_ray.rewards.verdicts import options_of
from mupo_ray.types import Prompt

PLAIN = ChatRenderer(template="{problem}", system_prompt=None)


def png(shade: int = 9) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), (shade, 9, 9)).save(buffer, "PNG")
    return buffer.getvalue()


PICTURE = base64.b64encode(png()).decode()


def prompts(source: EvalSource, limit: int | None = None) -> list[Prompt]:
    found = list(iter_prompts(source.table, PLAIN, limit))
    assert not [item for item in found if isinstance(item, Dropped)]
    return found  # type: ignore[return-value]


def tsv(path: Path, *rows: dict[str, Any]) -> Path:
    lines = ["\t".join(rows[0]), *("\t".join(str(v) for v in row.values()) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("data/eval.parquet", SetSpec(name="eval", mapping=None, source="data/eval.parquet")),
        ("MMStar.tsv", SetSpec(name="MMStar", mapping=None, source="MMStar.tsv")),
        ("copies/MathVista@testmini",
         SetSpec(name="MathVista-testmini", mapping=None, source="copies/MathVista@testmini")),
        ("mathvista=x.tsv", SetSpec(name="mathvista", mapping="mathvista", source="x.tsv")),
        ("mini:mathvista=x.tsv", SetSpec(name="mini", mapping="mathvista", source="x.tsv")),
        ("held=out/a b.tsv", SetSpec(name="held", mapping=None, source="out/a b.tsv")),
        ("a/k=v/x.tsv", SetSpec(name="x", mapping=None, source="a/k=v/x.tsv")),
    ],
)  # fmt: skip
def test_names_and_mappings(text: str, spec: SetSpec) -> None:
    assert parse_set(text) == spec


def test_names_that_do_not_work() -> None:
    with pytest.raises(ConfigError, match="'nope' is unknown; should be one of generic, "):
        parse_set("a:nope=x.tsv")
    with pytest.raises(ConfigError, match="two sets are named x; give each its own"):
        parse_sets(["a/x.tsv", "b/x.tsv"])


def test_our_own_parquet_is_read_where_it_lies(tmp_path: Path) -> None:
    table = pa.table(
        {
            "problem": ["<image>q1", "q2"],
            "answer": ["1", "2"],
            "images": [[{"bytes": png(), "path": None}], []],
            "category": ["x", None],
            # Training shows no options that are not in the problem; nor does evaluation.
            "options": ['{"A": "3", "B": "1"}', None],
        }
    )
    pq.write_table(table, tmp_path / "eval.parquet")
    source = open_set(parse_set(str(tmp_path / "eval.parquet")), tmp_path / "out")
    assert (source.tsv, source.table.files) == (None, (str(tmp_path / "eval.parquet"),))
    assert not (tmp_path / "out").exists()
    first, second = prompts(source)
    assert (first.question, len(first.images), first.position) == ("<image>q1", 1, 0)
    assert options_of(first) == {"A": "3", "B": "1"}
    assert (second.question, second.images, second.position) == ("q2", (), 1)
    assert [p.question for p in prompts(source, 1)] == ["<image>q1"]


def test_vlmevalkits_table_is_prepared_and_told_apart_by_its_content(tmp_path: Path) -> None:
    row = {"index": 1, "image": PICTURE, "question": "Which?", "A": "1", "B": "2", "answer": "B"}
    path = tsv(tmp_path / "set.tsv", row, {**row, "index": 2, "answer": ""})
    source = open_set(parse_set(str(path)), tmp_path / "out")
    assert (source.tsv, source.dropped_rows) == (str(path), {1})
    (prompt,) = prompts(source)
    assert prompt.question == "Which?\nOptions:\nA. 1\nB. 2"
    assert options_of(prompt) == {"A": "1", "B": "2"}
    again = open_set(parse_set(str(path)), tmp_path / "out")
    assert again.fingerprint == source.fingerprint
    tsv(path, {**row, "answer": "A"})
    assert open_set(parse_set(str(path)), tmp_path / "out").fingerprint != source.fingerprint


COMMON = {"index": 1, "image": PICTURE, "question": "Which?", "answer": "B"}
# The columns that VLMEvalKit's table of each set has besides, and the one that results go by.
TABLES = {
    "mathvista": ({"task": "geometry", "choices": "['1', '2']"}, "task"),
    "mathverse": ({"problem_version": "Vision Only"}, "problem_version"),
    "mathvision": ({"category": "algebra", "choices": "['1', '2']"}, "category"),
    "logicvista": ({"skill": "spatial"}, "skill"),
    "wemath": ({"A": "1", "B": "2", "knowledge concept": "areas"}, "knowledge concept"),
    "mmstar": ({"A": "1", "B": "2", "category": "math"}, "category"),
    "hallusionbench": ({"l2-category": "illusion"}, "l2-category"),
    "mmvet": ({"category": "ocr,math"}, "category"),
}


@pytest.mark.parametrize("name", TABLES)
def test_presets_read_their_file_and_report_by_their_category(name: str, tmp_path: Path) -> None:
    extra, category = TABLES[name]
    path = tsv(tmp_path / "file.tsv", COMMON | extra)
    source = open_set(parse_set(f"{name}={path}"), tmp_path / "out")
    (prompt,) = prompts(source)
    assert prompt.meta["category"] == extra[category]
    assert len(prompt.images) == 1 and prompt.answer == "B"


def test_logicvista_reads_its_own_json_with_its_folder_of_pictures(tmp_path: Path) -> None:
    row = {"imagename": "v1_0.png", "question": "Which (A-D)?", "answer": "A, C", "skill": ["x"]}
    row |= {"imagesource": "a web site"}
    (tmp_path / "data" / "images").mkdir(parents=True)
    (tmp_path / "data" / "images" / "v1_0.png").write_bytes(png())
    (tmp_path / "data" / "dataset.json").write_text(json.dumps({"v1_0": row}))
    spec = parse_set(f"logicvista={tmp_path / 'data' / 'dataset.json'}")
    (prompt,) = prompts(open_set(spec, tmp_path / "out"))
    assert (prompt.question, prompt.answer, len(prompt.images)) == ("Which (A-D)?", "A, C", 1)
    assert (prompt.meta["category"], prompt.meta["source"]) == ("x", "a web site")


def test_geometry3k_reads_its_file(tmp_path: Path) -> None:
    rows = {"images": [[{"bytes": png(), "path": None}]], "problem": ["<image>x?"], "answer": ["3"]}
    pq.write_table(pa.table(rows), tmp_path / "g.parquet")
    source = open_set(parse_set(f"geometry3k={tmp_path / 'g.parquet'}"), tmp_path / "out")
    assert [p.question for p in prompts(source)] == ["<image>x?"]


@pytest.mark.parametrize("name", [*TABLES, "geometry3k"])
def test_presets_refuse_a_file_of_another_layout(name: str, tmp_path: Path) -> None:
    path = tsv(tmp_path / "file.tsv", {"id": 1, "prompt": "q", "label": "B"})
    with pytest.raises(DataError) as caught:
        open_set(parse_set(f"{name}={path}"), tmp_path / "out")
    said = str(caught.value)
    assert said.startswith(f"set {name}: {path}: mapping {name} expects columns for problem, ")
    assert "the columns are id, prompt, label" in said
    for thing in MAPPINGS[name].required:
        assert f"{thing}: looked for {getattr(MAPPINGS[name], thing)[0]}" in said
    assert not (tmp_path / "out" / "data").exists()


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "is empty, expected a header"),
        ("question\tanswer\n", "has no rows"),
        (None, "not exist"),
    ],
)
def test_sets_without_rows(content: str | None, complaint: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "set.tsv").write_text(content)
    with pytest.raises(DataError, match=complaint):
        open_set(parse_set(str(tmp_path / "set.tsv")), tmp_path / "out")


def test_rows_that_cannot_be_asked_are_named_in_their_place(tmp_path: Path) -> None:
    rows = [{"problem": f"q{i}", "answer": "" if i == 20 else "1"} for i in range(40)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    source = open_set(parse_set(str(tmp_path / "rows.parquet")), tmp_path / "out")
    found = list(iter_prompts(source.table, PLAIN, 30))
    assert [item.position for item in found] == list(range(30))
    assert isinstance(found[20], Dropped)
    assert (found[20].row, found[20].reason) == (20, "empty_answer")
    prepared = open_set(parse_set(f"b={tmp_path / 'rows.jsonl'}"), tmp_path / "b")
    assert (prepared.table.num_rows, prepared.tsv) == (39, None)


def test_messages_hold_text_and_pictures_in_order(tmp_path: Path) -> None:
    renderer = ChatRenderer(template="{problem} Box it.", system_prompt="Be brief.")
    pq.write_table(
        pa.table(
            {
                "problem": ["Is <image> or <image> larger?"],
                "answer": ["1"],
                "images": [[{"bytes": png(s), "path": None} for s in (1, 2)]],
            }
        ),
        tmp_path / "eval.parquet",
    )
    source = open_set(parse_set(str(tmp_path / "eval.parquet")), tmp_path)
    (prompt,) = iter_prompts(source.table, renderer)
    assert isinstance(prompt, Prompt)
    system, user = renderer.messages(prompt)
    assert system == {"role": "system", "content": "Be brief."}
    kinds = [piece.get("text", piece["type"]) for piece in user["content"]]
    assert kinds == ["Is ", "image_url", " or ", "image_url", " larger? Box it."]
    for piece, shade in zip(user["content"][1::2], (1, 2), strict=True):
        head, data = piece["image_url"]["url"].split(",")
        assert head == "data:image/png;base64"
        assert Image.open(io.BytesIO(base64.b64decode(data))).getpixel((0, 0)) == (shade, 9, 9)
