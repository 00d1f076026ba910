"""What columns mean: names, options, pictures in cells, and columns that travel along."""

from __future__ import annotations

import base64
import datetime

import pytest

from mupo_ray.data.table import DropReason, ImageRef, RowError
from mupo_ray.errors import DataError
from mupo_ray.prepare.column_maps import MAPPINGS, passed_columns, resolve_columns
from mupo_ray.prepare.columns import (
    MappedRow,
    as_text,
    map_row,
    parse_options,
    shows_options,
)
from mupo_ray.prepare.source_text import loads

GIF = base64.b64decode("R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7")
LONG = base64.b64encode(GIF + bytes(20)).decode()


def mapped(cells: dict, mapping: str = "generic", *overrides: str) -> MappedRow:
    names = resolve_columns(mapping, overrides, list(cells))
    return map_row(cells, names, passed_columns(list(cells), names))


def test_generic_names_and_columns_that_travel_along() -> None:
    row = mapped(
        {
            "question": "<image>q",
            "image": "a.png",
            "answer": 7,
            "category": "algebra",
            "source": "book",
            "qid": "x1",
            "difficulty": 0.5,
            "tags": ["a", "b"],
            "note": None,
            "blob": b"12",
        }
    )
    assert (row.problem, row.answer, row.row_id) == ("<image>q", "7", "x1")
    assert (row.category, row.source) == ("algebra", "book")
    assert row.images == (ImageRef(path="a.png"),)
    assert row.passed == {"qid": "x1", "difficulty": "0.5", "tags": '["a", "b"]'}


def test_own_words_win_and_reach_into_objects() -> None:
    cells = {
        "prompt": "q",
        "img_1": "a.png",
        "img_2": None,
        "img_3": "c.png",
        "reward_model": {"ground_truth": "5"},
        "info": '{"kind": "plane"}',
    }
    row = mapped(
        cells,
        "generic",
        "problem=prompt",
        "image=img_1,img_2,img_3",
        "answer=reward_model.ground_truth",
        "category=info.kind",
    )
    assert (row.problem, row.answer, row.category) == ("q", "5", "plane")
    assert row.images == (ImageRef(path="a.png"), ImageRef(path="c.png"))


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (["problem=nope"], "no column 'nope'; the columns are question, answer"),
        (["colour=question"], "should read NAME=COLUMN"),
        (["problem"], "should read NAME=COLUMN"),
        (["answer="], "none for answer"),
    ],
)
def test_words_that_fit_no_column(overrides: list[str], complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        resolve_columns("generic", overrides, ["question", "answer"])


def test_a_source_without_an_answer_is_refused() -> None:
    with pytest.raises(DataError, match=r"answer: looked for answer, ground_truth.*--map answer="):
        resolve_columns("generic", [], ["problem", "label"])
    with pytest.raises(DataError, match="mapping 'nope' is unknown"):
        resolve_columns("nope", [], ["problem", "answer"])


@pytest.mark.parametrize(
    ("literal", "text"),
    [
        ('"007"', "007"),
        ('"None"', "None"),
        ("1.50", "1.50"),
        ("7", "7"),
        ("1e3", "1e3"),
        ("true", "true"),
        ("null", None),
        ("NaN", None),
        ('["a", 1]', '["a", 1]'),
        ('{"k": null}', '{"k": null}'),
    ],
)
def test_answers_keep_their_spelling(literal: str, text: str | None) -> None:
    assert as_text(loads(literal)) == text


def test_values_of_tables_as_text() -> None:
    assert as_text(datetime.date(2026, 1, 2)) == "2026-01-02"
    assert as_text(float("nan")) is None
    assert as_text({"bytes": b"x"}) == '{"bytes": null}'
    with pytest.raises(RowError, match="not Unicode"):
        as_text("\ud800")


@pytest.mark.parametrize(
    ("cell", "options"),
    [
        (["x", "y"], {"A": "x", "B": "y"}),
        (["A. x", "B. y"], {"A": "x", "B": "y"}),
        (["A. x", "A. y"], {"A": "A. x", "B": "A. y"}),
        ({"A": "x", "B": None}, {"A": "x"}),
        ({"a": "x", "b": "y"}, {"A": "x", "B": "y"}),
        ({"label": ["A", "B"], "text": ["x", "y"]}, {"A": "x", "B": "y"}),
        ("['x', 'None']", {"A": "x", "B": "None"}),
        ('{"A": "007"}', {"A": "007"}),
        (
            "A. 200.96;B. 32;C. 6; D. No answer",
            {"A": "200.96", "B": "32", "C": "6", "D": "No answer"},
        ),
        ("(A) one\n(B) two", {"A": "one", "B": "two"}),
        ("", {}),
        (None, {}),
    ],
)
def test_options_of_every_spelling(cell: object, options: dict[str, str]) -> None:
    assert parse_options(cell) == options


@pytest.mark.parametrize("cell", ["one of them", "A. 1;C. 2", "A. 1", 3, ["x"] * 27, {"1": "x"}])
def test_options_that_cannot_be_told_apart(cell: object) -> None:
    with pytest.raises(RowError) as caught:
        parse_options(cell)
    assert caught.value.reason is DropReason.BAD_OPTIONS


def test_options_are_shown_once() -> None:
    cells = {
        "question": "Which?",
        "hint": "Look.",
        "A": "None",
        "B": "NA",
        "C": None,
        "answer": "B",
    }
    row = mapped(cells, "vlmevalkit")
    assert row.problem == "Hint: Look.\nWhich?\nOptions:\nA. None\nB. NA"
    assert row.question == "Which?" and row.options == {"A": "None", "B": "NA"}
    assert mapped(cells).options == row.options  # Letters are known without a mapping as well.
    named = {**cells, "hint": None, "question": "Which? (A) None (B) NA"}
    assert mapped(named, "vlmevalkit").problem == "Which? (A) None (B) NA"
    assert shows_options("A: 1\nB: 2", {"A": "1", "B": "2"})
    assert not shows_options("Find AB. Then BA.", {"A": "1", "B": "2"})


@pytest.mark.parametrize(
    ("cell", "refs"),
    [
        ("a.png", [ImageRef(path="a.png")]),
        (GIF, [ImageRef(encoded=GIF)]),
        ({"bytes": GIF, "path": "x"}, [ImageRef(encoded=GIF)]),
        ({"bytes": None, "path": "x"}, [ImageRef(path="x")]),
        ({"bytes": base64.b64encode(GIF).decode()}, [ImageRef(encoded=GIF)]),
        ("data:image/gif;base64," + base64.b64encode(GIF).decode(), [ImageRef(encoded=GIF)]),
        (LONG, [ImageRef(encoded=GIF + bytes(20))]),
        (["a.png", None], [ImageRef(path="a.png"), ImageRef()]),
        ("['a.png', 'b.png']", [ImageRef(path="a.png"), ImageRef(path="b.png")]),
        ([], []),
        ("", []),
        (None, []),
    ],
)
def test_pictures_of_every_spelling(cell: object, refs: list[ImageRef]) -> None:
    assert mapped({"problem": "q", "answer": "1", "images": cell}).images == tuple(refs)


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ("https://example.org/a.png", DropReason.MISSING_IMAGE),
        (3.5, DropReason.BROKEN_IMAGE),
        ({"bytes": "not base64!"}, DropReason.BROKEN_IMAGE),
    ],
)
def test_pictures_that_are_none(cell: object, reason: DropReason) -> None:
    with pytest.raises(RowError) as caught:
        mapped({"problem": "q", "answer": "1", "images": cell})
    assert caught.value.reason is reason


@pytest.mark.parametrize(
    "row",
    [
        {"image": "a.png"},
        {"images": ["a.png"]},
        {"image": {"bytes": GIF, "path": None}},
        {"images": "a.png"},
    ],
)
def test_b16_every_spelling_of_the_column_gives_one_picture(row: dict) -> None:
    assert len(mapped({**row, "problem": "<image>q", "answer": "1"}).images) == 1


@pytest.mark.parametrize("cell", ["a.png", GIF, {"bytes": GIF}, [{"bytes": GIF}]])
def test_b16_a_picture_under_another_name_is_no_text_alone(cell: object) -> None:
    cells = {"problem": "q", "answer": "1", "picture": cell}
    with pytest.raises(RowError, match=r"column picture .*--map images=picture") as caught:
        mapped(cells)
    assert caught.value.reason is DropReason.UNMAPPED_IMAGE
    assert len(mapped(cells, "generic", "images=picture").images) == 1
    assert mapped(cells, "generic", "images=").images == ()


def test_b16_both_columns_are_an_error() -> None:
    with pytest.raises(RowError, match="both images and image"):
        mapped({"problem": "q", "answer": "1", "images": ["a.png"], "image": "b.png"})


def test_numbered_marks_order_the_pictures() -> None:
    cells = {"problem": "<image 2> or <image 1>?", "answer": "1", "images": ["a", "b", "c"]}
    row = mapped(cells)
    assert row.problem == "<image><image> or <image>?"
    assert [ref.path for ref in row.images] == ["c", "b", "a"]
    with pytest.raises(RowError, match="refers to image 4, but the row has 3"):
        mapped({**cells, "problem": "<image 4>"})


# Cells as the cards and loaders of these sets show them.
PUBLISHED = {
    "virl39k": (
        {
            "question": "<image>How many?",
            "answer": "\\boxed{7}",
            "PassRate_32BTrained": 0.25,
            "PassRate_7BBase": 0.5,
            "category": "(GradeSchool) Geometric",
            "source": "Processed",
            "qid": "Processed-1",
            "image": ["images/Processed-1-0.jpg"],
        },
        "<image>How many?",
        {},
    ),
    "geometry3k": (
        {
            "images": [{"bytes": GIF, "path": None}],
            "problem": "<image>Find x.",
            "answer": "12",
            "id": 3,
            "choices": ["10", "12", "14", "16"],
            "ground_truth": "B",
        },
        "<image>Find x.",
        {"A": "10", "B": "12", "C": "14", "D": "16"},
    ),
    "mathvista": (
        {
            "pid": "1",
            "question": "Which is longer?",
            "image": "images/1.jpg",
            "decoded_image": {"bytes": GIF, "path": "1.jpg"},
            "choices": ["red", "blue"],
            "unit": None,
            "precision": 1.0,
            "answer": "red",
            "question_type": "multi_choice",
            "answer_type": "text",
            "metadata": {"task": "geometry problem solving", "source": "GeoQA+"},
            "query": "Hint: the letter at the end.\nQuestion: Which?\nChoices:\n(A) red\n(B) blue",
        },
        "Hint: the letter at the end.\nQuestion: Which?\nChoices:\n(A) red\n(B) blue",
        {"A": "red", "B": "blue"},
    ),
    "mathverse": (
        {
            "sample_index": "5",
            "problem_index": "1",
            "problem_version": "Vision Only",
            "question": "",
            "image": {"bytes": GIF, "path": "1.png"},
            "answer": "A",
            "question_type": "multi-choice",
            "metadata": {"split": "testmini", "source": "GeoQA", "subject": "Plane Geometry"},
            "query_wo": "As the image asks, the letter at once.",
            "query_cot": "As the image asks, the letter after reasoning.",
            "question_for_eval": "Find it.\nChoices:\nA:3\nB:4",
        },
        "As the image asks, the letter after reasoning.",
        {},
    ),
    "wemath": (
        {
            "ID": "3steps_3",
            "split": "testmini",
            "knowledge concept": "Area of Circles",
            "question": "The area is (  )?",
            "option": "A. 200.96;B. 32; C. No correct answer",
            "answer": "B",
            "image_path": {"bytes": GIF, "path": "165-3.png"},
            "key": "3steps_multi",
            "question number": 1575,
            "knowledge concept description": "...",
        },
        "The area is (  )?\nOptions:\nA. 200.96\nB. 32\nC. No correct answer",
        {"A": "200.96", "B": "32", "C": "No correct answer"},
    ),
    "mmstar": (
        {
            "index": 4,
            "question": "Which?\nOptions: A: cat, B: dog",
            "image": {"bytes": GIF, "path": None},
            "answer": "A",
            "category": "math",
            "l2_category": "geometry",
            "meta_info": {"source": "MMBench", "split": "val", "image_path": "images/0.jpg"},
        },
        "Which?\nOptions: A: cat, B: dog",
        {},
    ),
    "mathvision": (
        {
            "id": "7",
            "question": "How many? <image1>",
            "options": [],
            "image": "images/7.jpg",
            "decoded_image": {"bytes": GIF, "path": "7.jpg"},
            "answer": "11",
            "level": 2,
            "subject": "counting",
        },
        "How many? <image>",
        {},
    ),
    "logicvista": (
        {
            "_key": "v1_12",
            "imagename": "v1_12.png",
            "question": "Which shape comes next? Select from A, B, C or D.",
            "answer": "B, D",
            "reasoning": "...",
            "skill": ["inductive"],
            "capability": ["patterns", "diagrams"],
            "imagesource": "aptitudetests",
            "sourcelink": "https://...",
        },
        "Which shape comes next? Select from A, B, C or D.",
        {},
    ),
    "hallusionbench": (
        {
            "category": "VD",
            "subcategory": "illusion",
            "visual_input": "1",
            "set_id": "0",
            "figure_id": "1",
            "question_id": "0",
            "question": "Is the left circle larger?",
            "gt_answer": "0",
            "filename": None,
            "image": {"bytes": GIF, "path": None},
        },
        "Is the left circle larger?",
        {},
    ),
    "mmvet": (
        {
            "question_id": "v1_3",
            "question": "What is x?",
            "image": {"bytes": GIF, "path": None},
            "answer": "-1<AND>-5",
            "image_source": "web",
            "capability": ["ocr", "math"],
        },
        "What is x?",
        {},
    ),
    "vlmevalkit": (
        {
            "index": "9",
            "image": LONG,
            "hint": None,
            "question": "Which?",
            "A": "1",
            "B": "2",
            "answer": "A",
            "category": "count",
            "l2-category": "fine",
        },
        "Which?\nOptions:\nA. 1\nB. 2",
        {"A": "1", "B": "2"},
    ),
}


def test_there_is_a_published_row_for_each_ready_mapping() -> None:
    assert {*PUBLISHED, "generic"} == set(MAPPINGS)


@pytest.mark.parametrize("name", PUBLISHED)
def test_ready_mappings_read_rows_as_published(name: str) -> None:
    cells, problem, options = PUBLISHED[name]
    row = mapped(cells, name)
    assert (row.problem, row.options) == (problem, options)
    assert len(row.images) == 1 and row.row_id
    if name == "logicvista":
        assert (row.images[0].path, row.source) == ("images/v1_12.png", "aptitudetests")
    assert row.answer == {"hallusionbench": "No"}.get(name, cells.get("answer"))
    assert row.category or name == "geometry3k"


def test_questions_of_a_file_with_ready_queries_are_kept_apart_from_them() -> None:
    cells = {**PUBLISHED["mathverse"][0], "question": "Find it."}
    row = mapped(cells, "mathverse")
    # Training rows are searched for the question, which other texts around it would hide.
    assert (row.question, row.problem) == ("Find it.", cells["query_cot"])
    del cells["query_cot"], cells["query_wo"]
    assert mapped(cells, "mathverse").problem == "Find it."


def test_one_picture_for_all_marks_of_a_problem() -> None:
    cells = {**PUBLISHED["mathvision"][0], "question": "What follows? <image1>"}
    cells |= {"options": ["<image2>", "<image3>"], "answer": "B"}
    row = mapped(cells, "mathvision")
    said = "<image>What follows? <image1>\nOptions:\nA. <image2>\nB. <image3>"
    assert (row.problem, len(row.images)) == (said, 1)
    with pytest.raises(RowError, match="refers to image 3, but the row has 1"):
        mapped(cells)
    letters = {**PUBLISHED["mathvision"][0], "options": ["A", "B", "C"], "answer": "C"}
    row = mapped(letters, "mathvision")
    assert (row.problem, list(row.options)) == ("How many? <image>", ["A", "B", "C"])


TABLE = {"index": "1", "image": LONG, "question": "Which?", "answer": "A"}
# Columns that VLMEvalKit's tables of these sets have besides index, image, question and answer.
VLMEVALKIT = {
    "mathvista": ({"task": "geometry problem solving", "choices": "['1', '2']"}, "A", "12"),
    "mathverse": ({"problem_version": "Vision Only", "question_for_eval": "q"}, "A", ""),
    "mathvision": ({"choices": "['1', '2']", "category": "algebra"}, "A", "12"),
    "logicvista": ({"skill": "['spatial', 'numerical']"}, "A", ""),
    "wemath": ({"A": "1", "B": "2", "ID": "3steps_3", "knowledge concept": "x"}, "A", "12"),
    "mmstar": ({"A": "1", "B": "2", "category": "math", "l2_category": "x"}, "A", "12"),
    "hallusionbench": ({"category": "VD", "l2-category": "illusion"}, "Yes", ""),
    "mmvet": ({"category": "ocr,math"}, "3", ""),
}


@pytest.mark.parametrize("name", VLMEVALKIT)
def test_ready_mappings_read_rows_of_vlmevalkits_tables(name: str) -> None:
    extra, answer, options = VLMEVALKIT[name]
    row = mapped({**TABLE, "answer": answer, **extra}, name)
    assert row.question == "Which?" and len(row.images) == 1
    assert row.answer == answer
    assert "".join(row.options.values()) == options
    assert row.category == {"mathvista": "geometry problem solving", "mathverse": "Vision Only",
        "mathvision": "algebra", "logicvista": "spatial, numerical", "wemath": "x",
        "mmstar": "math", "hallusionbench": "illusion", "mmvet": "ocr,math"}[name]  # fmt: skip


@pytest.mark.parametrize("name", [n for n in MAPPINGS if n not in ("generic", "vlmevalkit")])
def test_a_file_of_another_layout_is_told_what_is_expected_and_what_there_is(name: str) -> None:
    expected = ", ".join(MAPPINGS[name].required)
    complaint = f"mapping {name} expects columns for {expected}, and there is none for .*colour$"
    with pytest.raises(DataError, match=complaint.replace("$", "")) as caught:
        resolve_columns(name, [], ["colour"])
    assert "the columns are colour;" in str(caught.value)
    for thing in MAPPINGS[name].required:
        assert f"{thing}: looked for {', '.join(getattr(MAPPINGS[name], thing))}" in str(
            caught.value
        )


def test_what_a_user_says_is_not_there_is_not_expected() -> None:
    names = resolve_columns("mathvista", ["images=", "category="], ["question", "answer"])
    assert (names.images, names.category) == ((), ())
