"""Progress of sampling: counts, rate and time left, in words."""

from __future__ import annotations

import io

from mupo_ray.observability.progress import SamplingProgress


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_rates_are_of_this_start_and_the_time_left_of_what_is_missing() -> None:
    clock = Clock()
    progress = SamplingProgress(100, io.StringIO(), now=clock)
    progress.found(40)
    assert progress.text() == "40/100 responses"
    clock.now_s += 50.0  # Engines start.
    progress.begin()
    clock.now_s += 4.0
    progress.sampled(8, 160)
    assert progress.text() == "48/100 responses, 2.0/s, 40 tokens/s, 0:26 left"
    progress.left_out(12)
    assert progress.text() == "48/88 responses, 2.0/s, 40 tokens/s, 0:20 left"
    clock.now_s += 3996.0
    assert progress.text() == "48/88 responses, 0.0/s, 0 tokens/s, 5:33:20 left"


def test_plain_lines_come_now_and_then_and_at_the_end() -> None:
    clock, stream = Clock(), io.StringIO()
    with SamplingProgress(100, stream, now=clock) as progress:
        progress.begin()
        for _ in range(25):
            clock.now_s += 1.0
            progress.sampled(4, 8)
    lines = stream.getvalue().splitlines()
    assert [line.split()[1] for line in lines] == ["40/100", "80/100", "100/100"]
    assert lines[-1] == "sampling  100/100 responses, 4.0/s, 8 tokens/s, 0:00 left"


def test_a_terminal_gets_a_bar() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    clock, stream = Clock(), Terminal()
    with SamplingProgress(10, stream, now=clock) as progress:
        progress.begin()
        clock.now_s += 1.0
        progress.sampled(5, 5)
    assert "5/10 responses, 5.0/s, 5 tokens/s, 0:01 left" in stream.getvalue()
