"""Which column means what: ready mappings for the layouts of known data sets.

One mapping serves the copies of a set that people have: its files on the Hugging Face hub, its own
JSON, and VLMEvalKit's table. Of several names for one thing the first that has a value counts; a
name with a dot reaches into an object.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

LETTERS = tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnMap:
    """Names of the columns that hold each thing."""

    problem: tuple[str, ...] = ("problem", "question")
    answer: tuple[str, ...] = ("answer", "ground_truth", "gold")
    images: tuple[str, ...] = ("images", "image", "image_path", "file_name")
    options: tuple[str, ...] = ("options", "choices")
    """Columns with all options, or one column an option, each named by its letter."""
    category: tuple[str, ...] = ("category",)
    """What results are reported by."""
    source: tuple[str, ...] = ("source",)
    id: tuple[str, ...] = ("id", "index", "qid", "pid", "ID", "_key")
    """What names the row in reports."""
    hint: tuple[str, ...] = ("hint",)
    """Text that is put before the question."""
    asked: tuple[str, ...] = ()
    """The whole text for a model, with hint and options; without it, it is made of these."""
    join_images: bool = False
    """Whether the image columns hold one picture each, rather than being names for the same."""
    show_options: bool = True
    """Whether options are put behind a question that does not name them itself."""
    image_folder: str = ""
    """Where pictures that are named and not held lie, beside the file."""
    merged_image: bool = False
    """Whether a row's one picture may hold all that its numbered marks, `<image2>`, speak of."""
    answer_words: Mapping[str, str] = field(default_factory=dict)
    """Answers that the file has as a code -> the word that a model says."""
    required: tuple[str, ...] = ("problem", "answer")
    """Things that a file of this layout has a column for."""

    def used(self, columns: Sequence[str]) -> dict[str, list[str]]:
        """Thing -> those of its columns that a source has, for reports."""
        named = {
            name: [c for c in getattr(self, name) if has_column(c, columns)] for name in THINGS
        }
        return {name: found for name, found in named.items() if found}


_NOT_COLUMNS = (
    *("join_images", "show_options", "image_folder", "merged_image", "answer_words", "required"),
)
THINGS = tuple(f.name for f in fields(ColumnMap) if f.name not in _NOT_COLUMNS)
"""What columns can be mapped to."""

_WITH_PICTURES = ("problem", "answer", "images")
_REPORTED = (*_WITH_PICTURES, "category")

MAPPINGS: Mapping[str, ColumnMap] = {
    "generic": ColumnMap(),
    "virl39k": ColumnMap(
        problem=("question",),
        images=("image",),
        options=(),
        id=("qid",),
        required=_WITH_PICTURES,
    ),
    # The question is posed without its choices; the answer is the value, not the letter.
    "geometry3k": ColumnMap(
        problem=("problem",),
        images=("images",),
        options=("choices",),
        show_options=False,
        required=_WITH_PICTURES,
    ),
    # Its query says to how many places a number is wanted, and in which unit.
    "mathvista": ColumnMap(
        problem=("question",),
        asked=("query",),
        images=("decoded_image", "image"),
        options=("choices",),
        category=("metadata.task", "task"),
        source=("metadata.source", "source"),
        id=("pid", "index"),
        required=_REPORTED,
    ),
    # Its questions name their choices themselves. In version Vision Only they stand in the picture;
    # the question is empty and the query says where to look.
    "mathverse": ColumnMap(
        problem=("question",),
        asked=("query_cot",),
        images=("image",),
        options=(),
        category=("problem_version",),
        source=("metadata.source", "source"),
        id=("sample_index", "index"),
        required=_REPORTED,
    ),
    "mathvision": ColumnMap(
        problem=("question",),
        images=("decoded_image", "image"),
        options=("options", "choices"),
        category=("subject", "category"),
        id=("id", "index"),
        merged_image=True,
        required=_REPORTED,
    ),
    # The options stand in the picture or in the question.
    "logicvista": ColumnMap(
        problem=("question",),
        images=("image", "imagename"),
        image_folder="images",
        options=(),
        category=("skill",),
        source=("imagesource",),
        id=("index", "_key"),
        required=_REPORTED,
    ),
    "wemath": ColumnMap(
        problem=("question",),
        images=("image", "image_path"),
        options=("option", *LETTERS),
        category=("knowledge concept",),
        id=("ID",),
        required=_REPORTED,
    ),
    # On the hub its questions name their options themselves; the table has a column for each.
    "mmstar": ColumnMap(
        problem=("question",),
        images=("image",),
        options=LETTERS,
        source=("meta_info.source",),
        id=("index",),
        required=_REPORTED,
    ),
    "hallusionbench": ColumnMap(
        problem=("question",),
        answer=("answer", "gt_answer"),
        images=("image", "filename"),
        options=(),
        category=("l2-category", "subcategory"),
        id=("index", "question_id"),
        answer_words={"0": "No", "1": "Yes"},
        required=_REPORTED,
    ),
    # Open answers, which rules seldom decide: see reward.model_judge.
    "mmvet": ColumnMap(
        problem=("question",),
        images=("image", "imagename"),
        image_folder="images",
        options=(),
        category=("capability", "category"),
        source=("imagesource", "image_source"),
        id=("index", "question_id", "_key"),
        required=_REPORTED,
    ),
    "vlmevalkit": ColumnMap(
        problem=("question",),
        images=("image", "image_path"),
        options=LETTERS,
        id=("index",),
    ),
}
"""Ready mappings by name."""


def has_column(name: str, columns: Sequence[str]) -> bool:
    """Whether a source has a column, or the object that a name with a dot reaches into."""
    return name in columns or name.partition(".")[0] in columns
