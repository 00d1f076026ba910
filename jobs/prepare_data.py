"""Turn a data set into the table that training reads, and say what became of each row.

python jobs/prepare_data.py SOURCE --out FOLDER [--mapping NAME] [--map problem=question ...]

docs/data.md says what is accepted and what is dropped.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from pathlib import Path

from mupo_ray.errors import MupoError
from mupo_ray.prepare.column_maps import MAPPINGS
from mupo_ray.prepare.prepare import PrepareConfig, prepare


def main(argv: list[str] | None = None) -> int:
    """Run the job; returns the exit code."""
    args = _parser().parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    began = time.monotonic()
    try:
        report = prepare(
            PrepareConfig(
                source=args.source,
                out=args.out,
                mapping=args.mapping,
                columns=tuple(args.map),
                image_root=args.image_root,
                against=tuple(args.against),
                removes_contaminated=args.on_contamination == "remove",
                is_strict=args.strict,
                overwrites=args.overwrite,
                workers=args.workers,
                timeout_s=args.timeout_s,
                model=args.model,
                template=args.template,
                max_prompt_tokens=args.max_prompt_tokens,
            )
        )
    except MupoError as err:
        print(f"error: {err}", file=sys.stderr)
        return 1
    wall_s = time.monotonic() - began
    print(report.text())
    if report.rows_dropped:
        print(report.first_messages())
    print(f"wrote      {args.out}, {wall_s:.1f} s, {report.rows_in / wall_s:.0f} rows/s")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "source",
        help="a .parquet, .jsonl, .json, .tsv or .arrow file, a folder, a glob, FOLDER@SPLIT, or "
        "a Hugging Face id OWNER/NAME@SPLIT",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--mapping", default="generic", choices=MAPPINGS, help="of columns")
    parser.add_argument(
        "--map",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=COLUMN",
        help="own words on columns, problem=question images=img_1,img_2; win over --mapping",
    )
    parser.add_argument(
        "--image-root", type=Path, metavar="FOLDER", help="what image paths are relative to"
    )
    parser.add_argument(
        "--against",
        nargs="+",
        action="extend",
        default=[],
        metavar="SET",
        help="evaluation sets, as sources; MAPPING=SOURCE where the generic mapping does not fit",
    )
    parser.add_argument(
        "--on-contamination",
        choices=("remove", "report"),
        default="remove",
        help="what to do with rows that occur in them",
    )
    parser.add_argument("--strict", action="store_true", help="fail where any row would be dropped")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing folder")
    parser.add_argument(
        "--workers", type=int, metavar="N", help="Ray Data tasks at a time; 1 does without Ray"
    )
    parser.add_argument("--timeout-s", type=float, default=600.0, help="longest wait for a task")
    parser.add_argument("--model", help="model whose tokens --max-prompt-tokens counts")
    parser.add_argument("--template", default="plain", help="prompt template for that count")
    parser.add_argument("--max-prompt-tokens", type=int, help="drop longer prompts")
    return parser


if __name__ == "__main__":
    sys.exit(main())
