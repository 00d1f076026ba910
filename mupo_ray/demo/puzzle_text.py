r"""Texts that solve a puzzle: writing them, and reading them back.

A careful text reads two cells, computes, and concludes; a hasty one reads the cells and guesses.
Both end in the same box, which is all a verifier sees:

    <think> right column : c1 6 take away c2 1 , leaves 5 </think> \boxed{ 5 }
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mupo_ray.demo.puzzles import CELLS, Puzzle, Strategy

HASTY_SUCCESS = 0.25
"""Probability that a hasty text's guess is what its strategy gives."""

HINT_ODDS = 2.4
"""How much likelier a text's strategy is one with a white quadrant than one with a black quadrant.

Choices with these odds are valid two times in three; the short warm start learns most of the lean.
"""

MAX_RESPONSE_TOKENS = 20
"""Longest text of this module in tokens, end token included."""

# Two wordings a strategy: opening with both readings, then the careful conclusion. p, q are the
# readings, d the step between them with its direction w, s their sum, v the value concluded.
_WORDINGS: dict[Strategy, tuple[tuple[str, str], tuple[str, str]]] = {
    Strategy.ROW: (
        ("bottom row : a3 {p} then b3 {q}", ", {w} {d} , next {v}"),
        ("base line : a3 {p} to b3 {q}", ", {w} {d} , reach {v}"),
    ),
    Strategy.COL: (
        ("right column : c1 {p} take away c2 {q}", ", leaves {v}"),
        ("down the right side : c1 {p} minus c2 {q}", ", difference {v}"),
    ),
    Strategy.DIAG: (
        ("diagonal totals fifteen : a1 {p} plus b2 {q}", "is {s} , remaining {v}"),
        ("slanted line fifteen : a1 {p} and b2 {q}", "make {s} , short {v}"),
    ),
    Strategy.PAIR: (
        ("add the corner neighbours : b1 {p} with a2 {q}", ", together {v}"),
        ("sum beside the corner : b1 {p} joined a2 {q}", ", total {v}"),
    ),
}
_HASTY_END = ", number ? {v}"
_SHAPE = r"<think> {body} </think> \boxed{{ {boxed} }}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A response whose text one of the known wordings explains."""

    strategy: Strategy
    wording: int
    is_careful: bool
    readings: tuple[int, int]
    """The numbers that the text claims to see in the strategy's two cells."""
    concluded: int
    """The value that the text ends with."""
    boxed: int

    @property
    def is_faithful(self) -> bool:
        """True where the box holds what the strategy gives for the text's own readings."""
        return self.boxed == self.strategy.compute(*self.readings)

    def reads(self, puzzle: Puzzle) -> bool:
        """True where the readings are the picture's."""
        return self.readings == puzzle.readings(self.strategy)


def write_response(
    puzzle: Puzzle,
    strategy: Strategy,
    *,
    wording: int = 0,
    hasty_guess: int | None = None,
) -> str:
    """The text that executes a strategy, whether or not it is valid in this puzzle.

    Args:
        puzzle: the board to read.
        strategy: what to execute.
        wording: 0 or 1.
        hasty_guess: the value guessed instead of computed; None for a careful text.
    """
    p, q = puzzle.readings(strategy)
    opening, careful_end = _WORDINGS[strategy][wording]
    value = puzzle.candidate(strategy) if hasty_guess is None else hasty_guess
    ending = careful_end if hasty_guess is None else _HASTY_END
    joined = f"{opening} {ending}"
    body = joined.format(p=p, q=q, d=abs(q - p), w="down" if q < p else "up", s=p + q, v=value)
    return _SHAPE.format(body=body, boxed=value)


def sample_response(
    puzzle: Puzzle, strategy: Strategy, rng: np.random.Generator, *, careful_frac: float
) -> str:
    """A text with a random wording, careful with probability `careful_frac`."""
    wording = int(rng.integers(2))
    if rng.random() < careful_frac:
        return write_response(puzzle, strategy, wording=wording)
    guess = _guess(puzzle.candidate(strategy), rng)
    return write_response(puzzle, strategy, wording=wording, hasty_guess=guess)


def choose_strategies(puzzle: Puzzle, rng: np.random.Generator) -> Sequence[Strategy]:
    """As many strategies as there are: each once, or by `HINT_ODDS` where there is a hint."""
    strategies = tuple(Strategy)
    if puzzle.hint is None:
        return strategies
    weights = np.array([HINT_ODDS if s in puzzle.hint else 1.0 for s in strategies])
    edges = np.cumsum(weights / weights.sum())[:-1]
    # One draw in each quarter: independent draws vary too much for so faint a lean to be learned.
    places = (np.arange(len(strategies)) + rng.random()) / len(strategies)
    return [strategies[i] for i in np.searchsorted(edges, places, side="right")]


def opening_words(strategy: Strategy) -> tuple[str, str]:
    """The word that each wording of a strategy begins with; no other strategy begins so."""
    (first, _), (second, _) = _WORDINGS[strategy]
    return first.split()[0], second.split()[0]


def sample_caption(puzzle: Puzzle, rng: np.random.Generator, *, num_cells: int = 6) -> str:
    """Names and numbers of random cells, `a1 4 b2 5 ...`: teaches where a named cell lies."""
    chosen = rng.permutation(len(CELLS))[:num_cells]
    return " ".join(f"{CELLS[i]} {puzzle.board[i]}" for i in chosen)


def read_response(text: str) -> Chain | None:
    """Recognise a response, None where no known wording explains the whole text."""
    text = " ".join(text.split())
    for strategy, wording, is_careful, pattern in _PATTERNS:
        match = pattern.fullmatch(text)
        if match:
            p, q, concluded, boxed = (int(match[name]) for name in ("p", "q", "v", "boxed"))
            return Chain(
                strategy=strategy,
                wording=wording,
                is_careful=is_careful,
                readings=(p, q),
                concluded=concluded,
                boxed=boxed,
            )
    return None


def all_words() -> list[str]:
    """Every word that texts of this module use, numbers and cells apart, in a fixed order."""
    shapes = [_SHAPE.format(body="", boxed=""), _HASTY_END, "up down"]
    shapes += [part for wordings in _WORDINGS.values() for pair in wordings for part in pair]
    words = (word for shape in shapes for word in shape.split())
    return [w for w in dict.fromkeys(words) if not w.startswith("{") and w not in CELLS]


def _guess(right: int, rng: np.random.Generator) -> int:
    """A hasty value: right with `HASTY_SUCCESS`, else off by 1 or 2 within 1 to 9."""
    if rng.random() < HASTY_SUCCESS:
        return right
    near = [right + off for off in (-2, -1, 1, 2) if 1 <= right + off <= 9]
    return near[int(rng.integers(len(near)))]


def _pattern(opening: str, ending: str) -> re.Pattern[str]:
    body = re.escape(f"{opening} {ending}")
    for slot in ("p", "q", "v"):
        body = body.replace(re.escape(f"{{{slot}}}"), rf"(?P<{slot}>\d+)")
    for slot, shape in (("d", r"\d+"), ("s", r"\d+"), ("w", "(?:up|down)")):
        body = body.replace(re.escape(f"{{{slot}}}"), shape)
    return re.compile(rf"<think> {body} </think> \\boxed\{{ ?(?P<boxed>\d+) ?\}}")


_PATTERNS = [
    (strategy, wording, is_careful, _pattern(opening, ending if is_careful else _HASTY_END))
    for strategy, wordings in _WORDINGS.items()
    for wording, (opening, ending) in enumerate(wordings)
    for is_careful in (True, False)
]
