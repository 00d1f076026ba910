"""Which column means what: ready mappings for the layouts of known data sets, and a user's words.

One mapping serves the copies of a set that people have: its files on the Hugging Face hub, its own
JSON, and VLMEvalKit's table. Of several names for one thing the first that has a value counts; a
name with a dot reaches into an object.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from mupo_ray.errors import DataError

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
        return {
            name: present
            for name in THINGS
            if (present := [c for c in getattr(self, name) if has_column(c, columns)])
        }


THINGS = tuple(
    f.name for f in fields(ColumnMap) if isinstance(f.default, tuple) and f.name != "required"
)
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


def resolve_columns(
    mapping: str,
    overrides: Sequence[str],
    columns: Sequence[str],
    *,
    required: Sequence[str] | None = None,
) -> ColumnMap:
    """A ready mapping with a user's own words on top, checked against a source's columns.

    Args:
        mapping: a name of `MAPPINGS`.
        overrides: `problem=question` and the like; commas join several columns, nothing behind the
            equals sign means that there is no such column.
        columns: the source's.
        required: what there has to be a column for; what the mapping says where None. What a user
            says there is no column for is not required, but for problem and answer.

    Raises:
        DataError: an unknown name, or no column for what is required.
    """
    if mapping not in MAPPINGS:
        raise DataError(f"mapping {mapping!r} is unknown; there are {', '.join(MAPPINGS)}")
    names = MAPPINGS[mapping]
    for text in overrides:
        name, equals, value = text.partition("=")
        name = "images" if name == "image" else name
        if not equals or name not in THINGS:
            raise DataError(f"--map {text!r}: should read NAME=COLUMN, NAME of {', '.join(THINGS)}")
        chosen = tuple(part for part in value.split(",") if part)
        for column in chosen:
            if not has_column(column, columns):
                raise DataError(f"--map {text}: no column {column!r}; {_listed(columns)}")
        changed: dict[str, Any] = {name: chosen}
        if name == "images":
            changed["join_images"] = len(chosen) > 1
        names = replace(names, **changed)
    _require(mapping, names, required, columns)
    is_open = names.options == ColumnMap().options
    if is_open and not any(has_column(c, columns) for c in names.options) and "A" in columns:
        names = replace(names, options=LETTERS)
    return names


def _require(
    mapping: str, names: ColumnMap, required: Sequence[str] | None, columns: Sequence[str]
) -> None:
    needed = [
        name
        for name in (names.required if required is None else required)
        if name in ("problem", "answer") or getattr(names, name)
    ]
    missing = [
        name for name in needed if not any(has_column(c, columns) for c in getattr(names, name))
    ]
    if not missing:
        return
    looked = "; ".join(f"{name}: looked for {', '.join(getattr(names, name))}" for name in missing)
    raise DataError(
        f"mapping {mapping} expects columns for {', '.join(needed)}, and there is none for "
        f"{looked}; {_listed(columns)}; say which with --map {missing[0]}=COLUMN"
    )


def passed_columns(columns: Sequence[str], names: ColumnMap) -> tuple[str, ...]:
    """Columns that travel along unread: all that are not the first choice for anything."""
    taken: set[str] = set()
    for name in THINGS:
        chosen = [c for c in getattr(names, name) if c in columns]
        every = name in ("images", "options")
        # The row's own name is of use to whoever looks for it later.
        taken.update(() if name == "id" else chosen if every else chosen[:1])
    return tuple(column for column in columns if column not in taken)


def _listed(columns: Sequence[str]) -> str:
    return f"the columns are {', '.join(columns) or 'none'}"
