"""Verdicts a second: ours beside math-verify alone, on the same file and the same two cores.

Run: python benchmarks/bench_verdicts.py [FILE] [--rows 1000] [--processes 2]

FILE is JSONL with `response` and `gold`; without one, responses are made of the pairs that the
tests hold (every kind of answer) and of plain numbers, half and half. math-verify gets what it is
made for: whole responses, its own parsing and its own time limit, spread over `--processes`
processes that are up before the clock starts. Ours starts its workers before the clock as well, and
takes chunks of a step of the demo, in which it compares equal pairs once, as in training.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import time
from pathlib import Path

from mupo_ray.rewards.algebra_pool import AlgebraPool
from mupo_ray.rewards.verdicts import verdicts_of

ROOT = Path(__file__).resolve().parents[1]
_STEP_ROWS = 192
"""Responses of one step of the demo: 16 prompts, 12 each."""

Row = tuple[str, str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=2)
    args = parser.parse_args()
    sets = (
        {"file": read(args.file)}
        if args.file
        else {
            "mixed": mixed(args.rows),
            "formulas": pairs(args.rows),
            "numbers": numbers(args.rows),
        }
    )
    print(f"{'rows':>9} {'':>8} | verdicts/s: ours  math-verify | ours/math-verify")
    for name, rows in sets.items():
        ours = max(our_rate(rows, args.processes) for _ in range(args.repeats))
        theirs = max(their_rate(rows, args.processes) for _ in range(args.repeats))
        print(f"{len(rows):>9} {name:>8} | {ours:16.0f} {theirs:12.0f} | {ours / theirs:.1f}")
    step = numbers(_STEP_ROWS)
    print(f"{_STEP_ROWS} verdicts of the demo's kind: {1e3 * len(step) / our_rate(step, 2):.1f} ms")


def read(file: Path) -> list[Row]:
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [(row["response"], row["gold"]) for row in rows]


def numbers(count: int) -> list[Row]:
    rng = random.Random(1)
    return [
        (
            f"<think>I count {k}.</think>\n\\boxed{{{rng.randint(0, 9999)}}}",
            str(rng.randint(0, 9999)),
        )
        for k in range(count)
    ]


def pairs(count: int) -> list[Row]:
    """Pairs without options, which math-verify has no notion of; a figure makes each its own."""
    path = ROOT / "tests" / "unit" / "data" / "reward_pairs.jsonl"
    pairs = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    chosen = [pair for pair in pairs if "options" not in pair]
    rng = random.Random(0)
    return [
        (f"<think>Step {k}.</think>\n\\boxed{{{pair['answer']}}}", pair["gold"])
        for k, pair in enumerate(rng.choices(chosen, k=count))
    ]


def mixed(count: int) -> list[Row]:
    rows = pairs(count // 2) + numbers(count - count // 2)
    random.Random(2).shuffle(rows)
    return rows


def our_rate(rows: list[Row], processes: int) -> float:
    with AlgebraPool(num_workers=processes) as pool:
        warm_up(pool, processes)
        began = time.perf_counter()
        for start in range(0, len(rows), _STEP_ROWS):
            chunk = rows[start : start + _STEP_ROWS]
            verdicts_of([text for text, _ in chunk], [gold for _, gold in chunk], algebra_pool=pool)
        return len(rows) / (time.perf_counter() - began)


def warm_up(pool: AlgebraPool, processes: int) -> None:
    """Two at once, so that every worker starts."""
    texts = [f"\\boxed{{(x+{k})^2}}" for k in range(2 * processes)]
    golds = [f"x^2+{2 * k}x+{k * k}" for k in range(2 * processes)]
    verdicts_of(texts, golds, algebra_pool=pool)


def their_rate(rows: list[Row], processes: int) -> float:
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        pool.map(grade_alone, [("\\boxed{2x}", "x+x")] * 4 * processes, chunksize=1)
        began = time.perf_counter()
        pool.map(grade_alone, rows, chunksize=32)
        return len(rows) / (time.perf_counter() - began)


def grade_alone(row: Row) -> bool:
    from math_verify import parse, verify

    text, gold = row
    return bool(verify(parse(f"${gold}$"), parse(text)))


if __name__ == "__main__":
    main()
