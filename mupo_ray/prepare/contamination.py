"""Rows of training data that occur in evaluation sets, and what says so.

    image_exact          the same picture file, byte for byte
    image_near           the same picture in another file: re-encoded, resized, converted
    question             the same question, long enough to be no accident
    image_and_question   a picture that looks alike under the same question and answer

A picture that shows next to nothing (blank, one dot) proves nothing alone, nor does a short
question: `Find x.` is asked about every triangle. A long question under two different pictures with
two different answers is a pattern that both sets drew from, not a copy.

Two questions are the same one by equal words, or by nearly all runs of words in common. Case,
punctuation, LaTeX's backslashes and dollars and full-width forms do not count; numbers and signs of
arithmetic do.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import xxhash

from mupo_ray.prepare.picture_hash import PictureHash, PictureIndex

_PICTURES_WAITING = 256

RUN_WORDS = 8
"""Length of the runs of words that are compared."""

MIN_WORDS = 13
"""Shorter questions, `Find x.`, are asked about many pictures: their words prove nothing alone."""

MIN_OVERLAP = 0.8
"""Share of the shorter question's runs that the longer one must hold."""

# A number, a word, one character of a script without blanks, or a sign; a hyphen is none.
_WORD = re.compile(
    r"\d+(?:\.\d+)?|[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"
    r"|[^\W\d_\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+|[+=<>^*/]|-(?=\s*\d)"
)
_MARK = re.compile(r"<image(?: \d+)?>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """What a row is recognised by."""

    question: str
    answers: frozenset[str]
    """Spellings of the answer; empty where nothing is known of it."""
    is_letter: bool
    """Whether the answer is the letter of an option that is not known."""
    pictures: tuple[tuple[str, PictureHash], ...]
    """sha256 of the file, and the hash of what it shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRow:
    """A row of an evaluation set."""

    set_name: str
    row: int
    print: Fingerprint


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Where a row occurs and what says so."""

    kind: str
    """One of those at the top of this module."""
    set_name: str
    row: int
    """Number of the row in the evaluation set."""
    detail: str

    def as_dict(self) -> dict[str, str | int]:
        """Plain values for the report."""
        values = asdict(self)
        return {"eval_row" if name == "row" else name: value for name, value in values.items()}


def fingerprint(
    question: str,
    answer: str,
    options: dict[str, str],
    pictures: Sequence[tuple[str, PictureHash]],
) -> Fingerprint:
    """What a row is recognised by; a letter stands for its option as well."""
    letter = answer.strip().strip("()., ").upper()
    is_letter = len(letter) == 1 and letter.isalpha()
    texts = [answer, options[letter]] if letter in options else [answer]
    spelled = frozenset("\n".join(_answer_words(text)) for text in texts) - {""}
    return Fingerprint(
        question=question,
        answers=spelled,
        is_letter=is_letter and letter not in options,
        pictures=tuple(pictures),
    )


class ContaminationIndex:
    """Evaluation rows to search for a training row."""

    def __init__(self, store: Path) -> None:
        """Start an index.

        Args:
            store: file for what is kept of pictures; read wherever the index is used.
        """
        self._rows: list[EvalRow] = []
        self._exact: dict[str, int] = {}
        self._owners: list[int] = []
        self._pictures_of: list[range] = []
        self._pictures = PictureIndex(store)
        self._questions = QuestionIndex([])

    def extend(self, rows: Iterable[EvalRow]) -> None:
        """Add a set; of its pictures a few rows' are in memory at a time."""
        waiting: list[PictureHash] = []
        for row in rows:
            number = len(self._rows)
            for sha256, picture in row.print.pictures:
                self._exact.setdefault(sha256, number)
                self._owners.append(number)
                waiting.append(picture)
            last = len(self._owners)
            self._pictures_of.append(range(last - len(row.print.pictures), last))
            self._rows.append(replace(row, print=replace(row.print, pictures=())))
            if len(waiting) >= _PICTURES_WAITING:
                self._pictures.extend(waiting)
                waiting = []
        self._pictures.extend(waiting)
        self._questions = QuestionIndex([row.print.question for row in self._rows])

    def find(self, row: Fingerprint) -> Evidence | None:
        """The strongest sign that a row is in an evaluation set, None where it is clean."""
        for sha256, picture in row.pictures:
            if not picture.is_plain and sha256 in self._exact:
                return self._evidence("image_exact", self._exact[sha256], "same picture file")
        for _, picture in row.pictures:
            if not picture.is_plain and (same := self._pictures.same(picture)):
                return self._evidence("image_near", self._owners[same[0]], "same picture")
        for match in self._questions.find(row.question):
            if kind := self._question_proves(row, match):
                shared = "all words" if match.is_equal else f"{match.overlap:.0%} of the text"
                return self._evidence(kind, match.number, f"question shares {shared}")
        return None

    def _question_proves(self, row: Fingerprint, match: QuestionMatch) -> str | None:
        other = self._rows[match.number].print
        pictures = self._pictures_of[match.number]
        if match.is_equal and not row.pictures and not pictures:
            return "question"
        if _answers_differ(row, other):
            return None
        if len(words_of(row.question)) >= MIN_WORDS:
            return "question"
        looks_alike = any(self._pictures.similar(picture, pictures) for _, picture in row.pictures)
        return "image_and_question" if looks_alike else None

    def _evidence(self, kind: str, number: int, detail: str) -> Evidence:
        row = self._rows[number]
        return Evidence(kind=kind, set_name=row.set_name, row=row.row, detail=detail)


def _answers_differ(one: Fingerprint, other: Fingerprint) -> bool:
    """True where both answers are known and are not the same."""
    if one.is_letter or other.is_letter or not one.answers or not other.answers:
        return False
    return not one.answers & other.answers


def _answer_words(answer: str) -> list[str]:
    words = [word for word in words_of(answer) if word != "boxed"]
    # 60 and 60.0 are one answer.
    return [word.rstrip("0").rstrip(".") if "." in word else word for word in words]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionMatch:
    """A question that is nearly the same."""

    number: int
    is_equal: bool
    """Whether all words are the same, in order."""
    overlap: float
    """Share of the shorter one's runs that both have."""


def words_of(question: str) -> list[str]:
    """Words, numbers and signs of a question."""
    plain = unicodedata.normalize("NFKC", _MARK.sub(" ", question)).casefold()
    return _WORD.findall(plain)


class QuestionIndex:
    """Questions to search for others like them."""

    def __init__(self, questions: list[str]) -> None:
        self._whole: dict[int, list[int]] = {}
        self._figures: list[Counter[str]] = []
        sizes: list[int] = []
        runs: list[np.ndarray] = []
        for number, question in enumerate(questions):
            words = words_of(question)
            if words:
                self._whole.setdefault(_whole(words), []).append(number)
            runs.append(_runs(words))
            sizes.append(len(runs[-1]))
            self._figures.append(_figures(words))
        self._sizes = np.array(sizes, dtype=np.int64)
        every = np.concatenate([np.zeros(0, np.uint64), *runs])
        order = np.argsort(every, kind="stable")
        self._runs = every[order]
        self._owners = np.repeat(np.arange(len(questions)), self._sizes)[order]

    def find(self, question: str) -> list[QuestionMatch]:
        """Questions like this one, the most alike first."""
        words = words_of(question)
        if not words:
            return []
        equal = self._whole.get(_whole(words), [])
        matches = [QuestionMatch(number=n, is_equal=True, overlap=1.0) for n in equal]
        return matches + self._overlapping(words, set(equal))

    def _overlapping(self, words: list[str], but: set[int]) -> list[QuestionMatch]:
        runs = _runs(words)
        if len(runs) == 0 or len(self._runs) == 0:
            return []
        first = np.searchsorted(self._runs, runs, "left")
        last = np.searchsorted(self._runs, runs, "right")
        owners = [self._owners[a:b] for a, b in zip(first, last, strict=True) if a < b]
        if not owners:
            return []
        numbers, shared = np.unique(np.concatenate(owners), return_counts=True)
        overlaps = shared / np.minimum(self._sizes[numbers], len(runs))
        figures = _figures(words)
        matches = [
            QuestionMatch(number=int(n), is_equal=False, overlap=round(float(overlap), 3))
            for n, overlap in zip(numbers, overlaps, strict=True)
            if overlap >= MIN_OVERLAP
            and int(n) not in but
            # Exercises made from one pattern share their words and differ in their figures.
            and (figures <= self._figures[n] or self._figures[n] <= figures)
        ]
        return sorted(matches, key=lambda match: (-match.overlap, match.number))


def _whole(words: list[str]) -> int:
    return xxhash.xxh3_64_intdigest("\n".join(words).encode())


def _runs(words: list[str]) -> np.ndarray:
    """[R] uint64 hashes of the distinct runs, none where the question is short."""
    if len(words) < MIN_WORDS:
        return np.zeros(0, np.uint64)
    starts = range(len(words) - RUN_WORDS + 1)
    hashes = {_whole(words[i : i + RUN_WORDS]) for i in starts}
    return np.array(sorted(hashes), dtype=np.uint64)


def _figures(words: list[str]) -> Counter[str]:
    return Counter(word for word in words if not word.isalpha())
