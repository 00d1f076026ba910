"""Missing-number puzzles: pictures that four strategies solve with different reliability.

A puzzle is a 3x3 board of 1 to 9 pips whose bottom-right cell is hidden. The eight visible cells
form four disjoint pairs, one a strategy, and each strategy computes a candidate from its own pair
alone. Exactly two of the four candidates are the truth; which two cannot be seen without computing
them all.

A hinted puzzle shows four quadrants in the hidden cell, one a strategy: white says valid, black
says invalid, and each is right with probability `HINT_ACCURACY`. Which strategy to trust can then
be told from the picture.

Columns are a, b, c and rows 1, 2, 3; a board lists a1 b1 c1 a2 b2 c2 a3 b3.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from itertools import combinations, product

import numpy as np
from PIL import Image

CELLS = ("a1", "b1", "c1", "a2", "b2", "c2", "a3", "b3")
"""Names of the visible cells in the order of a board."""

CELL_PIXELS = 28
"""Side of a cell: patch 14 times merge 2, so a cell is exactly one image token."""

IMAGE_PIXELS = 3 * CELL_PIXELS
"""Side of the picture."""

PROMPT = "<image> missing number ?"
"""The question of every puzzle, with the placeholder of its picture."""

MIN_TRUTH, MAX_TRUTH = 2, 8

HINT_ACCURACY = 0.9
"""Probability that a quadrant of a hinted puzzle tells the truth about its strategy."""


class Strategy(StrEnum):
    """A way to compute the hidden number from one pair of cells."""

    ROW = "row"
    COL = "col"
    DIAG = "diag"
    PAIR = "pair"

    @property
    def cells(self) -> tuple[str, str]:
        """The two cells that it reads, in reading order of its argument."""
        return _PAIR_CELLS[self]

    def compute(self, first: int, second: int) -> int:
        """The candidate that follows from the numbers of its two cells."""
        match self:
            case Strategy.ROW:
                return 2 * second - first
            case Strategy.COL:
                return first - second
            case Strategy.DIAG:
                return 15 - first - second
            case Strategy.PAIR:
                return first + second


_PAIR_CELLS = {
    Strategy.ROW: ("a3", "b3"),
    Strategy.COL: ("c1", "c2"),
    Strategy.DIAG: ("a1", "b2"),
    Strategy.PAIR: ("b1", "a2"),
}

VALIDITY: Mapping[Strategy, float] = {
    Strategy.ROW: 0.4,
    Strategy.COL: 0.7,
    Strategy.DIAG: 0.5,
    Strategy.PAIR: 0.4,
}
"""Share of puzzles in which each strategy is right; sums to 2, since two of four are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Puzzle:
    """One board with its hidden number."""

    board: tuple[int, ...]
    """The eight visible numbers, 1 to 9, in the order of `CELLS`."""
    truth: int
    """The hidden number, 2 to 8."""
    hint: tuple[Strategy, ...] | None = None
    """Strategies whose quadrant is white; None where the hidden cell shows a question mark."""

    def readings(self, strategy: Strategy) -> tuple[int, int]:
        """The two numbers that a strategy reads."""
        first, second = strategy.cells
        return self.board[CELLS.index(first)], self.board[CELLS.index(second)]

    def candidate(self, strategy: Strategy) -> int:
        """What a strategy, executed without a slip, answers."""
        return strategy.compute(*self.readings(strategy))

    @property
    def valid(self) -> tuple[Strategy, ...]:
        """The strategies whose candidate is the truth."""
        return tuple(s for s in Strategy if self.candidate(s) == self.truth)


def sample_puzzle(rng: np.random.Generator) -> Puzzle:
    """Draw a puzzle: truth, the two valid strategies, two distinct wrong values, then the cells.

    Cells are uniform over all pairs that give the wanted value, so a board carries no other trace
    of which strategies are valid.
    """
    truth = int(rng.integers(MIN_TRUTH, MAX_TRUTH + 1))
    pairs, weights = pair_weights()
    valid = pairs[int(rng.choice(len(pairs), p=weights))]
    first, second = (s for s in Strategy if s not in valid)
    wrong = [
        (u, v) for u, v in product(_reachable(first), _reachable(second)) if len({truth, u, v}) == 3
    ]
    wanted = dict.fromkeys(valid, truth)
    wanted[first], wanted[second] = wrong[int(rng.integers(len(wrong)))]
    board = dict.fromkeys(CELLS, 0)
    for strategy in Strategy:
        choices = _cell_choices(strategy)[wanted[strategy]]
        numbers = choices[int(rng.integers(len(choices)))]
        board.update(zip(strategy.cells, numbers, strict=True))
    return Puzzle(board=tuple(board[cell] for cell in CELLS), truth=truth)


def add_hint(puzzle: Puzzle, rng: np.random.Generator) -> Puzzle:
    """The same board with a hint: the valid strategies, each bit flipped independently."""
    flips = rng.random(len(Strategy)) >= HINT_ACCURACY
    valid = puzzle.valid
    hint = tuple(s for s, flip in zip(Strategy, flips, strict=True) if (s in valid) != flip)
    return replace(puzzle, hint=hint)


@cache
def pair_weights() -> tuple[tuple[tuple[Strategy, Strategy], ...], np.ndarray]:
    """The six pairs of strategies that may be the valid ones, and [6] their probabilities.

    Iterative scaling of P(i, j) = u_i * u_j: the least committed distribution whose marginals are
    `VALIDITY`.
    """
    pairs = tuple(combinations(Strategy, 2))
    factors = dict.fromkeys(Strategy, 1.0)
    weights = np.ones(len(pairs))
    for _ in range(200):
        for strategy in Strategy:
            weights = np.array([factors[i] * factors[j] for i, j in pairs])
            weights /= weights.sum()
            marginal = sum(w for w, pair in zip(weights, pairs, strict=True) if strategy in pair)
            factors[strategy] *= VALIDITY[strategy] / marginal
    return pairs, weights


def render(puzzle: Puzzle, rng: np.random.Generator) -> np.ndarray:
    """Draw a board, and in its hidden cell the hint or a question mark.

    A quadrant of the hint is one patch of the vision tower; they read row, col, diag, pair from top
    left to bottom right.

    Returns:
        [84, 84, 3] uint8 picture. Offsets, ink and noise come from `rng`, so two pictures of a
        board differ unless the generators' states are equal.
    """
    pixels = np.repeat(np.repeat(_TINTS, CELL_PIXELS, axis=0), CELL_PIXELS, axis=1).copy()
    pixels[::CELL_PIXELS, :] = _GRID
    pixels[:, ::CELL_PIXELS] = _GRID
    offsets = rng.integers(0, 2, size=(9, 2))
    inks = _INKS[rng.integers(0, 2, size=9)]
    for index, number in enumerate(puzzle.board):
        top, left = CELL_PIXELS * (index // 3), CELL_PIXELS * (index % 3)
        for lattice in _PIPS[number]:
            row = top + 6 + 8 * (lattice // 3) + int(offsets[index, 0])
            col = left + 6 + 8 * (lattice % 3) + int(offsets[index, 1])
            pixels[row - 2 : row + 3, col - 2 : col + 3] = inks[index]
    hidden = pixels[2 * CELL_PIXELS :, 2 * CELL_PIXELS :]
    if puzzle.hint is None:
        glyph = np.kron(_QUESTION_MARK, np.ones((2, 2), dtype=bool))
        row, col = 7 + int(offsets[8, 0]), 9 + int(offsets[8, 1])
        hidden[row : row + glyph.shape[0], col : col + glyph.shape[1]][glyph] = _GRID
    else:
        bits = np.array([s in puzzle.hint for s in Strategy]).reshape(2, 2)
        quadrants = np.kron(255 * bits, np.ones((CELL_PIXELS // 2, CELL_PIXELS // 2)))
        hidden[1:, 1:] = quadrants[1:, 1:, None]  # The grid lines stay.
    pixels += _NOISE_SIGMA * rng.standard_normal(pixels.shape, dtype=np.float32)
    return np.clip(np.rint(pixels, out=pixels), 0, 255, out=pixels).astype(np.uint8)


def encode_png(pixels: np.ndarray) -> bytes:
    """PNG bytes of an [H, W, 3] uint8 picture."""
    buffer = io.BytesIO()
    # Runs alone (zlib's strategy 3): matching cannot compress noise, and costs half as much again.
    Image.fromarray(pixels).save(buffer, format="PNG", compress_type=3)
    return buffer.getvalue()


@cache
def _cell_choices(strategy: Strategy) -> dict[int, tuple[tuple[int, int], ...]]:
    """Value 1 to 9 -> every pair of numbers with which the strategy gives it."""
    choices: dict[int, list[tuple[int, int]]] = {}
    for first, second in product(range(1, 10), repeat=2):
        value = strategy.compute(first, second)
        if 1 <= value <= 9:
            choices.setdefault(value, []).append((first, second))
    return {value: tuple(pairs) for value, pairs in sorted(choices.items())}


def _reachable(strategy: Strategy) -> tuple[int, ...]:
    """Values 1 to 9 that a strategy can give: a difference is never 9, a sum never 1."""
    return tuple(_cell_choices(strategy))


_NOISE_SIGMA = np.float32(6.0)
_GRID = np.array([90, 90, 90], dtype=np.float32)
_INKS = np.array([[200, 40, 40], [40, 60, 200]], dtype=np.float32)
# One tint a cell, [3, 3, 3] row, column, channel.
_TINTS = np.array(
    [
        [[255, 240, 225], [235, 250, 230], [230, 240, 255]],
        [[250, 235, 245], [250, 250, 225], [230, 250, 250]],
        [[240, 230, 250], [255, 230, 230], [240, 240, 240]],
    ],
    dtype=np.float32,
)
# Dice-like places on a 3x3 lattice, 0 top left to 8 bottom right.
_PIPS = {
    1: (4,),
    2: (0, 8),
    3: (0, 4, 8),
    4: (0, 2, 6, 8),
    5: (0, 2, 4, 6, 8),
    6: (0, 2, 3, 5, 6, 8),
    7: (0, 2, 3, 4, 5, 6, 8),
    8: (0, 1, 2, 3, 5, 6, 7, 8),
    9: (0, 1, 2, 3, 4, 5, 6, 7, 8),
}
_QUESTION_MARK = np.array(
    [
        [0, 1, 1, 1, 0],
        [1, 0, 0, 0, 1],
        [0, 0, 0, 0, 1],
        [0, 0, 1, 1, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 0, 0, 0],
        [0, 0, 1, 0, 0],
    ],
    dtype=bool,
)
