"""What a vote gives over one answer, for the GRPO and the MUPO model of the demo.

    python benchmarks/bench_votes.py [--demo runs/demo] [--blocks 4] [--k 3]

Every question of the held-out set is answered greedily and 8 * `--blocks` times at temperature 1,
by the evaluation job's own code. Each block of 8 is grouped and voted on as `/v1/strategies` does
it; a question's value is its mean over blocks, an interval is over questions. The last column is
the paired difference of the two votes. Groups hold at least as many as `/v1/strategies` asks for
when nobody says otherwise.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

# Inherited by Ray's workers and vLLM's core, so set before either is imported.
os.environ |= {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "RAY_worker_niceness": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "TORCH_COMPILE_DISABLE": "1",
}

import numpy as np

from mupo_ray.core.intervals import paired_bootstrap, score_interval
from mupo_ray.evaluation.contestants import checkpoint_contestant, load_model_config
from mupo_ray.evaluation.evaluation import evaluate_sets
from mupo_ray.evaluation.results import SamplingSettings
from mupo_ray.evaluation.samples import EvaluatedProblem, load_problems
from mupo_ray.evaluation.sets import parse_set
from mupo_ray.serving.vote import Vote, Votes, group_and_vote
from mupo_ray.train.launch import connect

N = 8
"""Answers a vote is among."""


def main() -> int:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--demo", type=Path, default=Path("runs/demo"))
    parser.add_argument("--blocks", type=int, default=4, help=f"of {N} answers a question")
    parser.add_argument("--k", type=int, default=3, help="groups")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    min_group_size = max(1, min(3, N // args.k))
    print(f"n = {N}, k = {args.k}, groups of at least {min_group_size}, {args.blocks} blocks")
    print(
        f"{'model':<6} {'questions':>9} {'greedy':>20} {'sampled':>20} {'majority@8':>20} "
        f"{'group-majority@8':>20} {'difference':>23}"
    )
    for name in ("grpo", "mupo"):
        problems = sampled(args.demo / name, args.demo / "data" / "eval.parquet", args)
        votes = [votes_of(problem, args.k, min_group_size, args.seed) for problem in problems]
        majority = shares(problems, votes, lambda found: found.majority)
        by_group = shares(problems, votes, lambda found: found.group_majority)
        columns = [
            np.array([p.greedy is not None and p.greedy.is_correct for p in problems], np.float64),
            np.array([p.num_correct / len(p.samples) for p in problems]),
            majority,
            by_group,
        ]
        gain = paired_bootstrap([by_group - majority], seed=0)
        print(
            f"{name:<6} {len(problems):>9} "
            + " ".join(f"{interval(values):>20}" for values in columns)
            + f" {gain.values[0]:>+8.3f} [{gain.lows[0]:+.3f}, {gain.highs[0]:+.3f}]"
        )
    return 0


def sampled(run: Path, data: Path, args: argparse.Namespace) -> list[EvaluatedProblem]:
    """All questions answered by a run's newest checkpoint, judged and embedded."""
    config = load_model_config(str(run), (), ())
    limit = config.rollout.max_new_tokens
    contestant = checkpoint_contestant(config, limit, embeds=True)
    sampling = SamplingSettings(
        num_samples=N * args.blocks, temperature=1.0, top_p=1.0, max_new_tokens=limit,
        seed=args.seed,
    )  # fmt: skip
    connect(config)
    with tempfile.TemporaryDirectory() as out:
        evaluate_sets(
            contestant, [parse_set(f"set={data}")], Path(out), sampling=sampling,
            progress_to=sys.stderr,
        )  # fmt: skip
        return load_problems(Path(out) / "set" / "samples.parquet")


def votes_of(problem: EvaluatedProblem, k: int, min_group_size: int, seed: int) -> list[Votes]:
    """The votes of each block."""
    assert problem.embeddings is not None
    found = []
    for start in range(0, len(problem.samples), N):
        block = problem.samples[start : start + N]
        found.append(
            group_and_vote(
                texts=[response.text for response in block],
                embeddings=problem.embeddings[start : start + N],
                answers=[response.extracted for response in block],
                num_groups=k,
                min_group_size=min_group_size,
                seed=seed,
            ).votes
        )
    return found


def shares(
    problems: list[EvaluatedProblem], votes: list[list[Votes]], choose: Callable[[Votes], Vote]
) -> np.ndarray:
    """[P] share of a question's blocks whose vote is right."""
    right = [{r.extracted for r in p.samples if r.is_correct} for p in problems]
    return np.array(
        [
            np.mean([choose(block).answer in answers for block in blocks])
            for answers, blocks in zip(right, votes, strict=True)
        ]
    )


def interval(values: np.ndarray) -> str:
    """A mean with its interval."""
    found = score_interval([values])
    return f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"


if __name__ == "__main__":
    sys.exit(main())
