"""Mutated responses: no crash, no hang, no verdict above its time limit.

`FUZZ_RESPONSES=20000 pytest tests/unit/test_rewards_fuzz.py -s` runs the full count.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mupo_ray.rewards.algebra_pool import AlgebraPool
from mupo_ray.rewards.verdicts import verdict_of
from mupo_ray.types import Reason, Verdict

DATA = Path(__file__).parent / "data"
NUM_RESPONSES = int(os.environ.get("FUZZ_RESPONSES", "800"))
LIMIT_S = 3.0
# Waking up, killing a child and forking another, on a machine that is busy with other tests.
GRACE_S = 3.0

_PIECES = (
    *(
        "<think>",
        "</think>",
        "\\boxed{",
        "}",
        "{",
        "\\",
        "$",
        "%",
        "^",
        "_",
        "&",
        "\\\\",
        "\n",
        "\0",
    ),
    *(
        "9^{9^{9^{9}}}",
        "\\frac{",
        "\\sqrt{",
        "\\begin{pmatrix}",
        "\\end{pmatrix}",
        "\\cup ",
        "x=",
        "<",
    ),
    *("\\text{", "\\left(", ", ", " and ", "(A)", "1/0", "10^{400}", "1e999", "\\infty", "!", "!!"),
    *(
        "\u5398\u7c73",
        "\uff08",
        "\u221a",
        "\u00bd",
        "\u00b2",
        "\ud800",
        "\u202e",
        "\U0001f600",
        "\u0663",
    ),
)


def load() -> list[dict[str, Any]]:
    cases = [json.loads(x) for x in (DATA / "reward_cases.jsonl").read_text().splitlines()]
    pairs = [json.loads(x) for x in (DATA / "reward_pairs.jsonl").read_text().splitlines()]
    return cases + [
        pair | {"text": f"<think>work</think>\\boxed{{{pair['answer']}}}"} for pair in pairs
    ]


def mutate(text: str, other: str, rng: random.Random) -> str:
    """One to six edits, mostly inside the box, so that most texts have answers."""
    head, mark, answer = text.rpartition("\\boxed{")
    if mark and rng.random() < 0.8:
        return head + mark + edit(answer.removesuffix("}"), other, rng) + "}"
    return edit(text, other, rng)


def edit(text: str, other: str, rng: random.Random) -> str:
    for _ in range(rng.randint(1, 6)):
        at = rng.randint(0, len(text))
        end = min(len(text), at + rng.randint(1, 8))
        kind = rng.randrange(6)
        if kind == 0:
            text = text[:at] + text[end:]
        elif kind == 1:
            text = text[:at] + rng.choice(_PIECES) + text[at:]
        elif kind == 2:
            text = text[:at] + text[at:end] * rng.randint(2, 12) + text[end:]
        elif kind == 3:
            text = text[:at] + "".join(rng.sample(text[at:end], end - at)) + text[end:]
        elif kind == 4:
            cut = rng.randint(0, len(other))
            text = text[:at] + other[cut : cut + 12] + text[at:]
        else:
            text = text[:at] + rng.choice("0123456789xyzABC+-*/^=<>,.;:()[] ") + text[end:]
    return text


def test_mutated_responses() -> None:
    rng = random.Random(0)
    seeds = load()
    rows = []
    for _ in range(NUM_RESPONSES):
        seed, other = rng.choice(seeds), rng.choice(seeds)
        gold = other["gold"] if rng.random() < 0.1 else seed["gold"]
        rows.append((mutate(seed["text"], other["text"], rng), gold, seed.get("options")))

    def timed(row: tuple[str, str, dict[str, str] | None]) -> tuple[Verdict, float]:
        text, gold, options = row
        began = time.monotonic()
        return verdict_of(text, gold, options=options, algebra_pool=pool), time.monotonic() - began

    with AlgebraPool(num_workers=2, limit_s=LIMIT_S) as pool:
        pool.compare("2x", "x+x", 60.0)  # Starting up is no part of a verdict's time.
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(lambda _: pool.compare("2x", "x+x", 60.0), range(2)))
            verdicts = list(threads.map(timed, rows))
    slowest = max(range(len(rows)), key=lambda index: verdicts[index][1])
    print(
        f"\n{len(rows)} responses, slowest {verdicts[slowest][1]:.2f} s "
        f"({rows[slowest][0][-80:]!r}), "
        f"{dict(Counter(str(verdict.reason) for verdict, _ in verdicts))}"
    )
    assert verdicts[slowest][1] <= LIMIT_S + GRACE_S, rows[slowest]
    assert all(verdict.accuracy in (0.0, 1.0) for verdict, _ in verdicts)
    assert all(
        (verdict.accuracy == 1.0) is (verdict.reason is Reason.RIGHT) for verdict, _ in verdicts
    )
