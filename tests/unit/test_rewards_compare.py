"""Cheap rules: none of these pairs may need a worker."""

from __future__ import annotations

import time
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mupo_ray.rewards.equality.choices import normalise_options
from mupo_ray.rewards.equality.compare import MAX_CHARS, NeedsAlgebraError, compare, no_algebra
from mupo_ray.rewards.equality.spelling import normalise
from mupo_ray.types import Reason

_EQUAL = [
    ("7", "7"),
    ("007", "7"),
    ("-3.50", "-3.5"),
    ("1,234", "1234"),
    ("1{,}234.5", "1234.5"),
    (r"\dfrac12", "0.5"),
    (r"2\frac{1}{4}", "9/4"),
    ("0.333333", r"\frac{1}{3}"),
    ("1.5e3", "1500"),
    (r"3 \cdot 10^{-2}", "0.03"),
    ("+5", "5"),
    ("50%", "0.5"),
    ("28", r"28\%"),
    (r"28\%", "28"),
    ("12 cm", "12"),
    ("12", r"12\text{ cm}"),
    ("12 centimeters", "12 cm"),
    (r"\$12.50", "12.5"),
    ("12 square units", "12"),
    (r"9 \text{ m}^2", "9 square meters"),
    (r"20^{\circ}\mathrm{C}", "20"),
    (r"4\sqrt{3} cm", r"4\sqrt{3}"),
    ("3, 1, 2", "1,2,3"),
    ("1, 2, and 3", "3, 2, 1"),
    (r"\{1, \frac{1}{2}\}", r"\{0.5, 1\}"),
    (r"\{2, 1\}", "1, 2"),
    (r"\pm 2", "-2, 2"),
    ("x = 1 or x = 2", "2, 1"),
    ("(0.5, 2)", r"(\frac{1}{2}, 2)"),
    ("(1,2), (3,4)", "(3,4), (1,2)"),
    (r"x \geq 2", r"[2, \infty)"),
    ("3 > x", "x < 3"),
    (r"1 < x \leq 2", "(1, 2]"),
    (r"2 \ge x > 1", "(1, 2]"),
    ("x = 5", "5"),
    ("5", "y = 5"),
    ("(C)", "C"),
    ("C: a circle", "(C)"),
    ("A and C", "A, C"),
    ("no", "No."),
    (r"\triangle ABC", "ABC"),
    ("pepper and salt", "salt and pepper"),
]
_DIFFERENT = [
    ("7", "8"),
    ("1 1/4", "11/4"),
    ("3.1", "3.14"),
    ("0.0000001", "0.0000002"),
    ("1234567", "1234567.5"),
    ("0.25", r"0.25\%"),
    ("25%", "24%"),
    ("12 mm", "12 cm"),
    ("9 m^2", "9 m"),
    ("1, 2, 2", "1, 1, 2"),
    ("1, 2", "1, 2, 3"),
    ("1", "1, 2"),
    ("(2, 1)", "(1, 2)"),
    ("(1, 2)", "[1, 2]"),
    ("x < 3", r"(-\infty, 3]"),
    ("x > 3", r"(-\infty, 3)"),
    ("x < 3", "y < 3"),
    ("x = 5", "x = 6"),
    ("x = 5", "y = 5"),
    ("D", "B"),
    ("(A) or (B)", "A"),
    ("12 cm", "B"),
    ("A, B", "AC"),
    ("CBA", "ABC"),
    ("der", "red"),
    ("a circle", "3"),
    ("north", "south"),
]


@pytest.mark.parametrize(("answer", "gold"), _EQUAL)
def test_equal(answer: str, gold: str) -> None:
    assert compare(answer, gold, no_algebra) is Reason.RIGHT


@pytest.mark.parametrize(("answer", "gold"), _DIFFERENT)
def test_different(answer: str, gold: str) -> None:
    assert compare(answer, gold, no_algebra) is Reason.WRONG


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("x^2 - 1", "(x-1)(x+1)"),
        (r"\sqrt{8}", r"2\sqrt{2}"),
        ("3x + 2s", "3x + 2"),
        ("ab", "ba"),
    ],
)
def test_algebra_is_left_to_the_worker(answer: str, gold: str) -> None:
    with pytest.raises(NeedsAlgebraError):
        compare(answer, gold, no_algebra)


@pytest.mark.parametrize(("answer", "gold"), [("1 2", "12"), ("3 4", "12"), ("2", "1 2")])
def test_figures_side_by_side_are_no_product(answer: str, gold: str) -> None:
    assert compare(answer, gold, no_algebra) is Reason.UNPARSABLE


def test_a_long_answer_is_right_only_as_the_gold_itself() -> None:
    digits = "1" * (MAX_CHARS + 1)
    assert compare(digits, digits, no_algebra) is Reason.RIGHT
    assert compare(digits, "1", no_algebra) is Reason.UNPARSABLE


@given(st.integers(), st.integers())
def test_integers_law(left: int, right: int) -> None:
    expected = Reason.RIGHT if left == right else Reason.WRONG
    assert compare(str(left), str(right), no_algebra) is expected


@given(
    st.text(alphabet="0123456789abxABC.,;/%^_+-=<>(){}[]$\\ ", max_size=60), st.sampled_from("7xB")
)
def test_any_text_gets_a_reason(answer: str, gold: str) -> None:
    reason = compare(answer, gold, lambda _answer, _gold: Reason.UNPARSABLE)
    assert reason in (Reason.RIGHT, Reason.WRONG, Reason.UNPARSABLE)


@pytest.mark.parametrize(
    "piece",
    [
        *("1,", "(", ")", "{", "\\text{", " ", "1", "x<", "\\frac{", "A,", "and ", "1 m ", "$"),
        *(
            "a",
            "=",
            "a=",
            "\\a",
            "_a",
            "x'",
            ".1",
            "1 ",
            "\\circ^",
            "$1$,",
            "\\cup",
            "\\begin{",
            "&",
        ),
        *("\\\\", "[", "[[", "x\\ne", "or ", "A. ", "a-", "\u221a", "\u00b2", "\\over", "(A)"),
    ],
)
def test_the_longest_answers_take_milliseconds(piece: str) -> None:
    """A pattern that backtracks would take minutes; these take 10 ms each at most."""
    options = normalise_options({"A": "red", "B": "12 cm", "C": "1, 2"})
    golds = ("1 m, 2", "f(x) = 2", "\\begin{pmatrix}1\\end{pmatrix}", "AC")
    began = time.process_time()
    for gold, end, choices in product(golds, ("", "=!"), ((), options)):
        answer = (piece * MAX_CHARS)[: MAX_CHARS - len(end)] + end
        compare(answer, gold, lambda _answer, _gold: Reason.UNPARSABLE, choices)
    assert time.process_time() - began < 2.0


@pytest.mark.parametrize(
    "text", ["\uff081\uff0c2\uff09", r"\text{a \textbf{b}}", "45\u00b0", "$5$"]
)
def test_normalise_is_idempotent(text: str) -> None:
    once = normalise(text)
    assert normalise(once) == once
