"""Whether two questions are the same one: equal words, or nearly all runs of words in common.

Case, punctuation, LaTeX's backslashes and dollars and full-width forms do not count; numbers and
signs of arithmetic do.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from dataclasses import dataclass

import numpy as np
import xxhash

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
        found = [QuestionMatch(number=n, is_equal=True, overlap=1.0) for n in equal]
        return found + self._overlapping(words, set(equal))

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
        found = [
            QuestionMatch(number=int(n), is_equal=False, overlap=round(float(overlap), 3))
            for n, overlap in zip(numbers, overlaps, strict=True)
            if overlap >= MIN_OVERLAP
            and int(n) not in but
            # Exercises made from one pattern share their words and differ in their figures.
            and (figures <= self._figures[n] or self._figures[n] <= figures)
        ]
        return sorted(found, key=lambda match: (-match.overlap, match.number))


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
