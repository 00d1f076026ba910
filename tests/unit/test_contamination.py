"""Planted copies of evaluation rows among rows that only look like them."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image, ImageDraw, ImageFont

from mupo_ray.data.images import decode_image
from mupo_ray.prepare.contamination import (
    ContaminationIndex,
    EvalRow,
    Evidence,
    Fingerprint,
    QuestionIndex,
    fingerprint,
    words_of,
)
from mupo_ray.prepare.picture_hash import PictureIndex, hash_picture
from mupo_ray.prepare.prepare import PrepareConfig, prepare

LONG = (
    "As shown in the figure, in triangle ABC the side AB is 6, the side BC is 8 and the angle at B "
    "is 90 degrees; find the length of AC."
)


def drawing(label: str, *, seed: int = 0, size: tuple[int, int] = (480, 360)) -> Image.Image:
    """A triangle with three marked sides, as in a book of exercises."""
    rng = np.random.default_rng(seed)
    picture = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(picture)
    corners = [tuple(map(float, rng.uniform(0.1, 0.9, 2) * size)) for _ in range(3)]
    for a, b in zip(corners, corners[1:] + corners[:1], strict=True):
        pen.line([a, b], fill="black", width=2)
    font = ImageFont.load_default(18)
    for letter, corner in zip("ABC", corners, strict=True):
        pen.text(corner, letter, fill="black", font=font)
    middle = tuple(np.mean(corners, axis=0))
    pen.text(middle, label, fill="black", font=font)
    return picture


def photo(seed: int, size: tuple[int, int] = (320, 240)) -> Image.Image:
    """Soft patches of colour."""
    coarse = np.random.default_rng(seed).integers(0, 255, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)


def encode(picture: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def resized(picture: Image.Image, scale: float) -> Image.Image:
    size = (round(picture.width * scale), round(picture.height * scale))
    return picture.resize(size, Image.Resampling.LANCZOS)


COPIES = {
    "other_png": lambda p: encode(p, compress_level=1),
    "jpeg_95": lambda p: encode(p, "JPEG", quality=95),
    "jpeg_60": lambda p: encode(p, "JPEG", quality=60),
    "webp": lambda p: encode(p, "WEBP", quality=70),
    "half": lambda p: encode(resized(p, 0.5)),
    "two_thirds_jpeg": lambda p: encode(resized(p, 0.66), "JPEG", quality=75),
    "larger": lambda p: encode(resized(p, 1.7)),
    "square": lambda p: encode(p.resize((336, 336), Image.Resampling.BICUBIC)),
    "transparent": lambda p: encode(p.convert("RGBA")),
}
ORIGINALS = [drawing("x", seed=s) for s in range(6)] + [photo(s) for s in range(4)]


def indexed(folder: Path, pictures: list[Image.Image]) -> PictureIndex:
    index = PictureIndex(folder / "fine")
    found = [hash_picture(decode_image(encode(picture))) for picture in pictures]
    assert index.extend(found[:1]) == range(1)
    assert index.extend(found[1:]) == range(1, len(found))
    return index


@pytest.mark.parametrize("kind", COPIES)
def test_a_copy_in_another_file_is_the_same_picture(tmp_path: Path, kind: str) -> None:
    index = indexed(tmp_path, ORIGINALS)
    for number, picture in enumerate(ORIGINALS):
        copy = hash_picture(decode_image(COPIES[kind](picture)))
        assert index.same(copy) == [number]
        assert not copy.is_plain


@pytest.mark.parametrize("size", [(250, 180), (480, 360), (900, 700)])
@pytest.mark.parametrize("digits", [("38", "52"), ("3", "5"), ("6", "8"), ("1", "7")])
def test_one_other_digit_is_another_picture(tmp_path, size, digits) -> None:
    pictures = [drawing(digits[0], seed=seed, size=size) for seed in range(4)]
    index = indexed(tmp_path, pictures)
    for seed in range(4):
        other = hash_picture(decode_image(encode(drawing(digits[1], seed=seed, size=size))))
        assert index.same(other) == []
        assert index.similar(other, range(seed, seed + 1))


def test_pictures_that_show_nothing_are_plain() -> None:
    dot = Image.new("RGB", (300, 300), "white")
    dot.putpixel((5, 5), (0, 0, 0))
    icon = Image.new("RGB", (8, 8), "white")
    icon.paste((0, 0, 0), (3, 3, 5, 5))
    shade = Image.fromarray(np.tile(np.linspace(240, 255, 300).astype(np.uint8), (200, 1)))
    blank = Image.new("RGB", (400, 300), "white")
    for picture in (Image.new("RGB", (1, 1)), blank, dot, icon, shade):
        assert hash_picture(decode_image(encode(picture))).is_plain
    assert not hash_picture(decode_image(encode(drawing("7")))).is_plain


def test_words_of_a_question() -> None:
    assert words_of("<image>Find $\\angle ABC$, if  x = 3.50-2!") == [
        *["find", "angle", "abc", "if", "x", "=", "3.50", "-", "2"]
    ]
    assert words_of("\uff21B\u7684\u9577\u3055") == ["ab", "\u7684", "\u9577", "\u3055"]
    assert words_of("right-angled") == words_of("Right angled")
    assert words_of("x + y") != words_of("x / y")


@pytest.mark.parametrize(
    ("question", "is_found"),
    [
        (LONG, True),
        ("<image>" + LONG.upper().replace(",", " ").replace(";", "."), True),
        ("Answer with one number. " + LONG + " Choices: A. nine B. ten", True),
        (LONG.replace("8", "9"), False),
        (LONG.replace("find the length of AC", "what is the area"), True),
        ("Find x.", False),
        ("", False),
    ],
    ids=["same", "case", "longer", "other_number", "other_end", "short", "empty"],
)
def test_questions_that_share_their_runs(question: str, is_found: bool) -> None:
    index = QuestionIndex(["Where?", "", LONG, "Find y."])
    assert [match.number for match in index.find(question)] == ([2] if is_found else [])


def test_one_other_number_is_another_exercise() -> None:
    question = f"{LONG} The triangle is drawn to scale on squared paper, with one square for each"
    index = QuestionIndex([f"{question} unit; add 5 to your answer."])
    assert index.find(f"{question} unit; add 6 to your answer.") == []
    (match,) = index.find(f"{question} unit; add five to your answer.")
    assert 0.8 < match.overlap < 1 and not match.is_equal


def test_short_questions_match_as_a_whole() -> None:
    index = QuestionIndex(["Find x.", "Find y."])
    (match,) = index.find("<image> find X")
    assert match.number == 0 and match.is_equal


def row(question: str, answer: str, *pictures: Image.Image, **options: str) -> Fingerprint:
    images = [decode_image(encode(picture)) for picture in pictures]
    found = [(image.sha256, hash_picture(image)) for image in images]
    return fingerprint(question, answer, options, found)


def evidence(folder: Path, eval_row: Fingerprint, train_row: Fingerprint) -> str | None:
    index = ContaminationIndex(folder / "pictures")
    index.extend([EvalRow(set_name="s", row=3, print=eval_row)])
    found = index.find(train_row)
    assert found is None or (found.set_name, found.row) == ("s", 3)
    return found and found.kind


ONE, OTHER = drawing("6", seed=1), drawing("6", seed=2)
BLANK = Image.new("RGB", (64, 64), "white")


@pytest.mark.parametrize(
    ("eval_row", "train_row", "kind"),
    [
        (row("q one", "1", ONE), row("q two", "2", ONE), "image_exact"),
        (row("q one", "1", ONE), row("q two", "2", resized(ONE, 0.7)), "image_near"),
        (row("q one", "1", BLANK), row("q two", "2", BLANK), None),
        (row("Find x.", "5", BLANK), row("Find x.", "5", BLANK), "image_and_question"),
        (row("Find x.", "5", BLANK), row("Find x.", "6", BLANK), None),
        (row("Find x.", "5", ONE), row("Find x.", "5", OTHER), None),
        (row("Find x.", "5"), row("find X", "5"), "question"),
        (row("Find x.", "5", ONE), row("find X", "5"), None),
        (row(LONG, "10", ONE), row(LONG.lower(), "10"), "question"),
        (row(LONG, "10", ONE), row(LONG, "10", OTHER), "question"),
        (row(LONG, "10", ONE), row(LONG, "7", OTHER), None),
        (row(LONG, "B", ONE, A="9", B="10"), row(LONG, "10.0", OTHER), "question"),
        (row(LONG, "B", ONE), row(LONG, "10", OTHER), "question"),
        (row(LONG, "10", ONE), row(LONG.replace("8", "9"), "10", OTHER), None),
        (row(LONG, "10", ONE), row(LONG.replace("6", "5"), "10"), None),
        (row(LONG, "10"), row(LONG.replace("length of AC", "area of ABC"), "24"), None),
    ],
)
def test_what_proves_a_copy(tmp_path, eval_row, train_row, kind) -> None:
    assert evidence(tmp_path, eval_row, train_row) == kind


def plant(folder: Path) -> tuple[Path, Path, dict[int, str]]:
    """An evaluation set, training rows, and which of these are copies by what evidence."""
    folder.mkdir()
    eval_rows, rows, planted = [], [], {}

    def save(name: str, encoded: bytes) -> str:
        (folder / name).write_bytes(encoded)
        return name

    for i in range(16):
        picture = drawing(str(20 + i), seed=i) if i % 2 else photo(i)
        save(f"eval{i}.png", encode(picture))
        question = f"<image>Find the size of angle {i} in the figure."
        eval_rows.append({"problem": question, "images": [f"eval{i}.png"], "answer": str(i)})
        # The same drawing with another number, another photo: exercises of one kind.
        near = drawing(str(60 + i), seed=i) if i % 2 else photo(1000 + i)
        other = f"<image>Find the size of angle {i + 50} in the figure."
        name = save(f"near{i}.png", encode(near))
        rows.append({"problem": other, "images": [name], "answer": str(i + 7)})
    eval_rows.append({"problem": LONG, "images": [], "answer": "10"})
    eval_rows.append({"problem": "<image>What is it?", "images": ["blank.png"], "answer": "paper"})
    save("blank.png", encode(BLANK))
    rows.append({"problem": "<image>How many?", "images": ["blank.png"], "answer": "0"})
    rows.append({"problem": LONG.replace("8", "15"), "images": [], "answer": "17"})
    copies = {
        "image_exact": ("<image>Another question?", (folder / "eval3.png").read_bytes()),
        "image_near": ("<image>Which one?", COPIES["two_thirds_jpeg"](drawing("25", seed=5))),
        "question": (LONG.lower().replace(",", ""), None),
        "image_and_question": ("<image>what is it", encode(BLANK)),
    }
    for kind, (question, encoded) in copies.items():
        images = [] if encoded is None else [save(f"copy_{kind}.png", encoded)]
        planted[len(rows)] = kind
        rows.append({"problem": question, "images": images, "answer": "paper" if images else "10"})
    paths = []
    for name, table in (("eval", eval_rows), ("train", rows)):
        paths.append(folder / f"{name}.jsonl")
        paths[-1].write_text("".join(json.dumps(cells) + "\n" for cells in table))
    return paths[0], paths[1], planted


def test_planted_copies_are_removed_and_no_clean_row_is(tmp_path) -> None:
    eval_set, train, planted = plant(tmp_path / "in")
    config = PrepareConfig(source=str(train), out=tmp_path / "out", against=(str(eval_set),))
    report = prepare(config)
    assert {c.row: c.evidence.kind for c in report.contaminated} == planted
    assert report.dropped_rows == {"contaminated": list(planted)}
    assert pq.read_metadata(tmp_path / "out" / "data.parquet").num_rows == 18
    written = json.loads((tmp_path / "out" / "report.json").read_text())["contamination"]
    assert written["against"][0]["num_rows"] == 18
    (exact,) = [found for found in written["rows"] if found["kind"] == "image_exact"]
    assert (exact["set_name"], exact["row"]) == (str(eval_set), 18)
    assert exact["eval_row"] == 3
    # Pictures of removed rows are not left lying about.
    names = {p.stem for p in (tmp_path / "out" / "images").glob("*/*")}
    assert len(names) == 17


def test_reported_copies_stay(tmp_path) -> None:
    eval_set, train, planted = plant(tmp_path / "in")
    report = prepare(
        PrepareConfig(
            source=str(train),
            out=tmp_path / "out",
            against=(str(eval_set),),
            removes_contaminated=False,
            is_strict=True,
        )
    )
    assert [c.row for c in report.contaminated] == list(planted)
    assert report.rows_dropped == 0 and "4 rows reported" in report.text()


def test_an_evaluation_set_that_is_partly_unreadable_is_said(tmp_path, caplog) -> None:
    eval_set, train, _ = plant(tmp_path / "in")
    (tmp_path / "in" / "eval4.png").unlink()
    config = PrepareConfig(source=str(train), out=tmp_path / "out", against=(str(eval_set),))
    (found,) = prepare(config).against
    assert found.unreadable == {"missing_image": 1}
    assert "1 of 18 rows cannot be read in full" in caplog.text


def test_evidence_as_plain_values() -> None:
    found = Evidence(kind="question", set_name="s", row=1, detail="d")
    assert found.as_dict() == {"kind": "question", "set_name": "s", "eval_row": 1, "detail": "d"}
