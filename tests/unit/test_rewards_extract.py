from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mupo_ray.rewards.extract import extract_answer, has_format, reasoning_span

_PIECES = st.lists(
    st.sampled_from(
        [
            "<think>",
            "</think>",
            "< think >",
            " </ think>\n",
            "\\boxed{",
            "}",
            "{",
            "5",
            "\n",
            " ",
            "/",
        ]
    ),
    max_size=12,
).map("".join)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{7}", "7"),
        (r"<think>a</think> \boxed{ 7 }", "7"),
        (r"<think>a</think>b</think>\boxed{7}", "7"),
        (r"<think>a</think>\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"<think>a</think>\boxed{f(x) \right\} x}", r"f(x) \right\} x"),
        ("<think>a</think>\\boxed {7}", "7"),
        ("< think >\\boxed{3}< / think >\\boxed{7}", "7"),
        (r"<think>\boxed{7}", None),
        (r"<think>a</think>\boxed{7}<think>again", None),
        (r"<think>a</think>\boxed{}", None),
        (r"<think>a</think>\boxed{7} or \boxed{8", None),
        (r"<think>a</think>\boxed{7} or \boxed", None),
        (r"<think>a</think>\boxed{a \boxed{7} b}", "7"),
        ("", None),
    ],
)
def test_extract_answer(text: str, answer: str | None) -> None:
    assert extract_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "span"),
    [
        (r"x <think>a</think> b <think>c</think> \boxed{7}", "<think>a</think>"),
        (r"<think>never closed \boxed{7}", "<think>never closed "),
        (r"first this, then \boxed{7}, then \boxed{8}", "first this, then "),
        ("no tags at all", "no tags at all"),
        (r"\boxed{7}", r"\boxed{7}"),
        ("", ""),
    ],
)
def test_reasoning_span(text: str, span: str) -> None:
    assert reasoning_span(text) == span


@given(_PIECES)
def test_format_is_the_published_pattern(text: str) -> None:
    squeezed = re.sub(r"\s*(<|>|/)\s*", r"\1", text)
    published = re.compile(r"<think>.*</think>.*\\boxed\{.*\}.*", re.DOTALL)
    assert has_format(text) is (published.fullmatch(squeezed) is not None)


def test_extraction_is_linear_in_the_text() -> None:
    # The published pattern needs about 10**10 steps on this one.
    text = "<think>" + "</think>\\boxed{" * 4000 + "< " * 4000
    assert not has_format(text)
    assert extract_answer(text) is None
    assert reasoning_span(text) == "<think></think>"
