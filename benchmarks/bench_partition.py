"""Constrained k-means: ours, one cohort at a time and a step at once, beside k-means-constrained.

Run: python benchmarks/bench_partition.py [--inputs 20] [--repeats 5]

Times are the least of `repeats` for each input (other work on the machine only adds time), then the
median over inputs. `inertia` is ours over the library's: 1 is equal, below 1 is a better partition.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import numpy as np
from k_means_constrained import KMeansConstrained
from numpy.typing import NDArray

from mupo_ray.core.grouping import inertia, partition, partition_many

SHAPES = [(12, 2, 4, 1024), (15, 3, 3, 1024), (8, 2, 3, 384), (16, 4, 3, 1024), (32, 4, 4, 1024)]


def random_rows(rng: np.random.Generator, n: int, k: int, d: int) -> NDArray[np.float32]:
    """Unit rows without structure: the hardest kind for a search that prunes."""
    del k
    return unit(rng.standard_normal((n, d)))


def clustered_rows(rng: np.random.Generator, n: int, k: int, d: int) -> NDArray[np.float32]:
    """Unit rows around a shared topic with a few ways of reasoning, like embedded responses."""
    topic, ways = 3 * rng.standard_normal(d), rng.standard_normal((k, d))
    return unit(topic + ways[rng.integers(0, k, n)] + rng.standard_normal((n, d)))


def repeated_rows(rng: np.random.Generator, n: int, k: int, d: int) -> NDArray[np.float32]:
    """As above, but most responses repeat one of a few texts word by word."""
    few = clustered_rows(rng, k + 3, k, d)
    return few[np.minimum(rng.geometric(0.4, n) - 1, k + 2)]


def unit(rows: NDArray[np.float64]) -> NDArray[np.float32]:
    lengths: NDArray[np.float64] = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / lengths, np.float32)


def least_ms(call: Callable[[], object], repeats: int) -> float:
    best = np.inf
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return 1e3 * best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    print(
        f"{'data':>9} {'N':>3} {'K':>2} {'min':>3} {'D':>5} | ms a prompt: ours  many   library"
        f" | library/ours | inertia mean  worst"
    )
    for make in (random_rows, clustered_rows, repeated_rows):
        for n, k, m, d in SHAPES:
            rng = np.random.default_rng(0)
            compare(
                make.__name__.removesuffix("_rows"),
                args.repeats,
                k,
                m,
                [make(rng, n, k, d) for _ in range(args.inputs)],
            )


def compare(name: str, repeats: int, k: int, m: int, inputs: list[NDArray[np.float32]]) -> None:
    """Measure one shape and print its line."""
    n, d = inputs[0].shape
    model = KMeansConstrained(n_clusters=k, size_min=m, random_state=0)
    partition(inputs[0], k, m)
    ours = [least_ms(partial(partition, x, k, m), repeats) for x in inputs]
    many = least_ms(partial(partition_many, inputs, k, m), repeats) / len(inputs)
    theirs = [least_ms(partial(model.fit_predict, x), repeats) for x in inputs]
    # No more texts than groups leave nothing to either side.
    ratio = [
        (inertia(x, partition(x, k, m)) + 1e-9) / (inertia(x, model.fit_predict(x)) + 1e-9)
        for x in inputs
    ]
    print(
        f"{name:>9} {n:3} {k:2} {m:3} {d:5} | {np.median(ours):17.3f} {many:6.3f} "
        f"{np.median(theirs):8.3f} | {np.median(theirs) / np.median(ours):12.1f} | "
        f"{np.mean(ratio):12.5f} {np.max(ratio):.5f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
