"""`predictions.tsv` on VLMEvalKit tables of each layout, read back as VLMEvalKit reads them."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from mupo_ray.data.chat import ChatRenderer
from mupo_ray.data.stream import Dropped, iter_prompts
from mupo_ray.evaluation.predictions import prediction_of, write_predictions
from mupo_ray.evaluation.samples import EvaluatedProblem, JudgedResponse
from mupo_ray.evaluation.sets import EvalSource, open_set, parse_set


def png(size: int = 8, noise: bool = False) -> str:
    pixels = np.random.default_rng(0).integers(0, 255, (size, size, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels if noise else np.zeros_like(pixels)).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


PICTURE = png()


def response(text: str, extracted: str | None) -> JudgedResponse:
    return JudgedResponse(
        text=text, num_tokens=1, is_truncated=False, accuracy=0.0, format=0.0,
        extracted=extracted, reason="wrong",
    )  # fmt: skip


def problem(position: int, greedy: JudgedResponse | None, **changed: object) -> EvaluatedProblem:
    return EvaluatedProblem(
        **{
            "set_name": "s", "prompt_id": f"p{position}", "position": position,
            "question": "q", "answer": "a", "greedy": greedy, **changed,
        }
    )  # fmt: skip


def answered(source: EvalSource, answers: list[str | None]) -> list[EvaluatedProblem]:
    """Records of a set whose greedy answers are given; None for a row that is not asked."""
    renderer = ChatRenderer(template="{problem}", system_prompt=None)
    prompts = [p for p in iter_prompts(source.table, renderer) if not isinstance(p, Dropped)]
    return [
        problem(
            prompt.position,
            response("...", answer),
            question=prompt.question,
            answer=prompt.answer,
            category=prompt.meta.get("category"),
            meta=prompt.meta,
        )
        for prompt, answer in zip(prompts, answers, strict=True)
    ]


def round_trip(
    tmp_path: Path, tsv: str, answers: list[str | None], limit: int | None = None
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The table as VLMEvalKit loads it, and the predictions as it loads those."""
    path = tmp_path / "set.tsv"
    path.write_text(tsv, encoding="utf-8")
    source = open_set(parse_set(str(path)), tmp_path / "out")
    write_predictions(tmp_path / "p.tsv", source, answered(source, answers), limit)
    return pd.read_csv(path, sep="\t"), pd.read_csv(tmp_path / "p.tsv", sep="\t")


def assert_carried(table: pd.DataFrame, found: pd.DataFrame, predictions: list[object]) -> None:
    """All columns of the table but the picture, in order and as they were, then `prediction`."""
    carried = table.drop(columns="image")
    assert list(found.columns) == [*carried.columns, "prediction"]
    pd.testing.assert_frame_equal(found[list(carried.columns)], carried)
    assert found["prediction"].fillna("").tolist() == predictions


def test_pictures_by_reference_b11(tmp_path: Path) -> None:
    rows = f"1\t{PICTURE}\tq1\t4\n2\t1\tq2\t5\n10\t11\tq3\t6\n11\t{png(9)}\tq4\t7\n"
    table, found = round_trip(
        tmp_path, "index\timage\tquestion\tanswer\n" + rows, ["4", "5", "x", "7"]
    )
    assert_carried(table, found, ["4", "5", "x", "7"])


def test_options_that_read_as_missing_b18(tmp_path: Path) -> None:
    row = f"1\t{PICTURE}\tWhich applies?\tNone\tNA\t007\tB\n"
    tsv = "index\timage\tquestion\tA\tB\tC\tanswer\n" + row
    table, found = round_trip(tmp_path, tsv, ["B"])
    assert_carried(table, found, ["B"])
    texts = pd.read_csv(tmp_path / "p.tsv", sep="\t", dtype=str, keep_default_na=False)
    assert texts.loc[0, ["A", "B", "C"]].tolist() == ["None", "NA", "007"]


def test_a_very_long_cell_b20(tmp_path: Path) -> None:
    tsv = f"index\timage\tquestion\tanswer\n1\t{png(300, noise=True)}\tq\t4\n"
    table, found = round_trip(tmp_path, tsv, ["4"])
    assert_carried(table, found, [4])


def test_rows_without_a_picture_b22(tmp_path: Path) -> None:
    tsv = f"index\timage\tquestion\tanswer\n1\t{PICTURE}\tq1\tYes\n2\t\tq2\tNo\n"
    assert_carried(*round_trip(tmp_path, tsv, ["Yes", "No"]), ["Yes", "No"])


def test_every_column_in_its_order_and_every_sign(tmp_path: Path) -> None:
    quoted = '"two\nlines, a ""quote"" and\ta tab"'
    tsv = (
        "index\tl2-category\timage\tquestion\thint\tB\tA\tcategory\tanswer\tsplit\tprediction\n"
        f'v1_0\tx\t{PICTURE}\t{quoted}\tlook\t"2\t"\t1\tcount\tB\t0.50\told\n'
        f"v1_1\t\t{PICTURE}\tna\u00efve \u6797 \U0001f600?\t\t2\t1\t\tA\t1e3\told\n"
    )
    answers = ['say "B"\tand\nmore', "\u6797\U0001f600"]
    table, found = round_trip(tmp_path, tsv, answers)
    assert_carried(table.drop(columns="prediction"), found, answers)
    assert found["question"][0] == 'two\nlines, a "quote" and\ta tab'


def test_rows_that_were_not_asked_have_no_prediction(tmp_path: Path) -> None:
    rows = f"1\t{PICTURE}\tq1\t4\n2\t99\tq2\t5\n3\t{PICTURE}\tq3\t\n4\t{PICTURE}\tq4\t7\n"
    table, found = round_trip(tmp_path, "index\timage\tquestion\tanswer\n" + rows, ["a", "d"])
    assert_carried(table, found, ["a", "", "", "d"])


def test_a_limit_counts_the_rows_that_were_asked(tmp_path: Path) -> None:
    rows = f"1\t99\tq1\t4\n2\t{PICTURE}\tq2\t5\n3\t{PICTURE}\tq3\t6\n"
    _, found = round_trip(tmp_path, "index\timage\tquestion\tanswer\n" + rows, ["b", "c"], limit=1)
    assert found["index"].tolist() == [1, 2]
    assert found["prediction"].fillna("").tolist() == ["", "b"]


def test_a_set_of_ours_gets_the_layout(tmp_path: Path) -> None:
    rows = [
        {"problem": "<image>Which?\nOptions:\nA. 1\nC. 3", "answer": "C", "category": "x",
         "options": '{"A": "1", "C": "3"}', "images": [base64.b64decode(PICTURE)], "level": "2"},
        {"problem": "2 + 2?", "answer": "4", "category": None, "options": None, "images": [],
         "level": None},
    ]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "eval.parquet")
    source = open_set(parse_set(str(tmp_path / "eval.parquet")), tmp_path / "out")
    write_predictions(tmp_path / "p.tsv", source, answered(source, ["C", None]))
    assert (tmp_path / "p.tsv").read_text().splitlines()[0] == "\t".join(
        f'"{c}"' for c in ("index", "question", "A", "C", "answer", "category", "level",
                           "prediction")
    )  # fmt: skip
    found = pd.read_csv(tmp_path / "p.tsv", sep="\t", dtype=str).fillna("")
    assert found.values.tolist() == [
        ["0", "Which?\nOptions:\nA. 1\nC. 3", "1", "3", "C", "x", "2", "C"],
        ["1", "2 + 2?", "", "", "4", "", "", "..."],
    ]


def test_an_index_of_the_sets_own_is_kept_where_it_is_one(tmp_path: Path) -> None:
    for indices, expected in ((["b", "a"], ["b", "a"]), (["a", "a"], ["0", "1"])):
        problems = [
            problem(i, response("", "x"), meta={"index": index}) for i, index in enumerate(indices)
        ]
        pq.write_table(pa.table({"problem": ["q"], "answer": ["a"]}), tmp_path / "e.parquet")
        source = open_set(parse_set(str(tmp_path / "e.parquet")), tmp_path / "out")
        write_predictions(tmp_path / "p.tsv", source, problems)
        found = pd.read_csv(tmp_path / "p.tsv", sep="\t", dtype=str)
        assert found["index"].tolist() == expected


@pytest.mark.parametrize(
    ("greedy", "samples", "expected"),
    [
        (response(r"<think>A?</think>\boxed{B}", "B"), (), "B"),
        (response("<think>A or B</think> It is B. ", None), (), "It is B."),
        (response("no end of it", None), (), "no end of it"),
        (None, (response("x", "C"), response("y", "D")), "C"),
        (response("x", "A"), (response("y", "D"),), "A"),
        (None, (), ""),
    ],
)
def test_what_is_scored(
    greedy: JudgedResponse | None, samples: tuple[JudgedResponse, ...], expected: str
) -> None:
    assert prediction_of(problem(0, greedy, samples=samples)) == expected


def test_signs_that_end_lines_elsewhere_come_back(tmp_path: Path) -> None:
    pq.write_table(pa.table({"problem": ["q"], "answer": ["a"]}), tmp_path / "e.parquet")
    source = open_set(parse_set(str(tmp_path / "e.parquet")), tmp_path / "out")
    text = 'a\rb\r\nc\u2028d\x0be\x85f\'""\\n\\'
    write_predictions(tmp_path / "p.tsv", source, [problem(0, response("", text))])
    assert pd.read_csv(tmp_path / "p.tsv", sep="\t")["prediction"].tolist() == [text]
