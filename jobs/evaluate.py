"""Evaluate a model on sets: many samples a question, judged, embedded and measured.

    python jobs/evaluate.py --model runs/mupo --set eval.parquet --out evals/mupo
    python jobs/evaluate.py --address http://host:8000/v1 --model NAME --set mmstar=MMStar.tsv ...

The same command again goes on with what is missing. docs/evaluation.md says what is measured.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from mupo_ray.config import add_config_arguments, load_config
from mupo_ray.errors import MupoError
from mupo_ray.evaluation.results import SamplingSettings
from mupo_ray.observability.console import set_up_logging

if TYPE_CHECKING:
    from mupo_ray.config import Config
    from mupo_ray.evaluation.contestants import Contestant


def main(argv: list[str] | None = None) -> int:
    """Run the job; returns the exit code."""
    parser = _parser()
    args = parser.parse_intermixed_args(argv)
    _check(parser, args)
    began = time.monotonic()
    try:
        set_up_logging()
        text = _evaluate(args)
    except MupoError as err:
        print(f"error: {err}", file=sys.stderr)
        return 1
    print(f"\n{text}\n\ndone in {time.monotonic() - began:.0f} s: {args.out}")
    return 0


def _evaluate(args: argparse.Namespace) -> str:
    """Everything from the arguments to the files; returns the table for the terminal."""
    from mupo_ray.demo.shapes import puzzle_measures
    from mupo_ray.evaluation.evaluation import evaluate_sets
    from mupo_ray.evaluation.sets import parse_sets
    from mupo_ray.evaluation.tables import results_table
    from mupo_ray.report.eval_page import write_eval_report

    specs = parse_sets(args.set)
    config, contestant = _contestant(args)
    results = evaluate_sets(
        contestant,
        specs,
        args.out,
        sampling=SamplingSettings(
            num_samples=args.samples,
            temperature=args.temperature,
            top_p=args.top_p,
            max_new_tokens=args.max_new_tokens or config.rollout.max_new_tokens,
            seed=args.seed,
        ),
        has_greedy=args.greedy,
        limit=args.limit,
        ks=args.k,
        # Of the laptop task; other sets have none of them.
        further=puzzle_measures,
        progress_to=sys.stderr,
    )
    name = args.out.absolute().name
    page = write_eval_report({name: args.out}, args.out / "report.html", name)
    return f"{results_table(results, args.k)}\n\nreport  {page}"


def _contestant(args: argparse.Namespace) -> tuple[Config, Contestant]:
    from mupo_ray.evaluation import contestants
    from mupo_ray.openai_client import ChatServer
    from mupo_ray.train.launch import connect

    if args.address:
        config = load_config(args.config, args.overrides)
        server = ChatServer(
            address=args.address,
            model=args.model,
            api_key_env=args.api_key_env,
            max_concurrent=args.concurrency,
            timeout_s=config.rollout.request_timeout_s,
        )
        contestant = contestants.served_contestant(config, server, embeds=args.embed)
    else:
        config = contestants.load_model_config(args.model, args.config, args.overrides)
        max_new_tokens = args.max_new_tokens or config.rollout.max_new_tokens
        contestant = contestants.checkpoint_contestant(config, max_new_tokens, embeds=args.embed)
    connect(config)
    return config, contestant


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    model = parser.add_argument_group("model")
    model.add_argument(
        "--model",
        required=True,
        help="a Hugging Face folder or id, a run or a checkpoint of one; with --address the name "
        "of the served model",
    )
    model.add_argument(
        "--address", metavar="URL", help="of an OpenAI-compatible API: http://host:8000/v1"
    )
    model.add_argument(
        "--api-key-env",
        default="OPENAI_API_KEY",
        metavar="NAME",
        help="environment variable that holds the key for --address",
    )
    model.add_argument(
        "--concurrency", type=int, default=16, help="requests at a time, for --address"
    )
    parser.add_argument(
        "--set",
        action="append",
        required=True,
        metavar="[NAME[:MAPPING]=]SOURCE",
        help="Parquet of our layout, a VLMEvalKit TSV, or any source of docs/data.md; a NAME that "
        "is a mapping's (mathvista, ...) reads the file by it; may be given again",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--samples", type=int, default=16, help="sampled answers a question (n)")
    parser.add_argument(
        "--k",
        type=int,
        nargs="+",
        default=[],
        metavar="K",
        help="rows of the table, pass@K and majority@K; every k up to n is in the files, and one "
        "beyond it among what is left out",
    )
    parser.add_argument(
        "--greedy",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="one more answer at temperature 0",
    )
    parser.add_argument("--temperature", type=float, default=1.0, help="of the samples")
    parser.add_argument("--top-p", type=float, default=1.0, help="nucleus of the samples")
    parser.add_argument(
        "--max-new-tokens", type=int, help="longest answer; rollout.max_new_tokens if not given"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, help="rows of each set, from its start")
    parser.add_argument(
        "--embed",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="embed the reasoning, for diversity",
    )
    add_config_arguments(parser)
    return parser


def _check(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    for name in ("limit", "max_new_tokens", "concurrency"):
        value = getattr(args, name)
        if value is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')} {value}: should be at least 1")
    if any(k < 1 for k in args.k):
        parser.error(f"--k {' '.join(map(str, args.k))}: each should be at least 1")
    if args.samples < 0 or (args.samples == 0 and not args.greedy):
        parser.error(f"--samples {args.samples}: should be at least 1, or 0 with --greedy")
    if args.temperature <= 0 or not 0 < args.top_p <= 1:
        parser.error(
            f"--temperature {args.temperature:g} --top-p {args.top_p:g}: should be above 0, and "
            "--top-p at most 1; --samples 0 is greedy alone"
        )


if __name__ == "__main__":
    sys.exit(main())
