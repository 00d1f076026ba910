from __future__ import annotations

import io

import pytest

from mupo_ray.observability.console import HEADER_EVERY, StepLines, StepPrinter
from mupo_ray.observability.metrics import check

_VALUES = {
    "reward/accuracy/mean": 0.4375,
    "reward/total/mean": 0.61234,
    "diversity/pairwise": 0.4842,
    "diversity/effective": 2.345,
    "response/length/mean": 41.26,
    "loss/total": -0.0123456,
    "optim/grad_norm": 1.5,
    "time/step_s": 4.021,
}


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_numbers_stand_under_their_titles() -> None:
    header, line = StepLines(40).format(3, _VALUES)
    expected = {
        "acc": "0.438",
        "reward": "0.612",
        "diversity": "0.484",
        "strategies": "2.35",
        "tokens": "41.3",
        "loss": "-0.01235",
        "kl": "-",
        "grad norm": "1.500",
        "s/step": "4.02",
    }
    assert line.startswith("step   3/40 ")
    for title, number in expected.items():
        end = header.index(title) + len(title)
        assert line[:end].split()[-1] == number
        assert line[end : end + 1] in ("", " ")


@pytest.mark.parametrize("size", [1e-12, -1e-7, 12345.678, -9.9e37, float("nan"), float("-inf")])
def test_any_number_fits(size: float) -> None:
    lines = StepLines(1_000_000).format(999_999, dict.fromkeys(_VALUES, size))
    assert len({len(line) for line in lines}) == 1
    assert len(lines[0]) <= 120


def test_header_comes_back() -> None:
    lines = StepLines(100)
    counts = [len(lines.format(step, {})) for step in range(2 * HEADER_EVERY + 1)]
    assert [step for step, count in enumerate(counts) if count == 2] == [0, 20, 40]


def test_plain_lines_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    with StepPrinter(2, stream) as printer:
        printer.step(1, _VALUES)
        printer.line("eval: acc@1 [0.5]")
        printer.step(2, _VALUES)
    text = stream.getvalue()
    assert "\x1b" not in text
    assert "\r" not in text
    assert len(text.splitlines()) == 4


def test_a_bar_on_a_terminal_leaves_the_lines_whole() -> None:
    stream = _Terminal()
    with StepPrinter(2, stream) as printer:
        printer.step(1, _VALUES)
        printer.line("eval: acc@1 [0.5]")
        printer.step(2, _VALUES)
    text = stream.getvalue()
    assert "training" in text
    assert "eval: acc@1 [0.5]\n" in text
    assert StepLines(2).format(1, _VALUES)[1] + "\n" in text


def test_columns_are_declared_metrics() -> None:
    from mupo_ray.observability import console

    for column in console._COLUMNS:
        assert check(column.key)
