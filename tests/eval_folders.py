"""Small evaluations and runs on disk, for tests of the report."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from mupo_ray.evaluation.measures import measure_evaluation
from mupo_ray.evaluation.results import SamplingSettings, save_results
from mupo_ray.evaluation.samples import EvaluatedProblem, JudgedResponse, save_problems

NUM_SAMPLES = 9


def png(shade: int) -> bytes:
    """A picture of one colour."""
    out = io.BytesIO()
    Image.new("RGB", (24, 24), (shade, 90, 160)).save(out, "PNG")
    return out.getvalue()


def write_data(path: Path, num_rows: int) -> list[bytes]:
    """A data file; returns the picture of each row."""
    pictures = [png(10 * i) for i in range(num_rows)]
    rows = [
        {
            "problem": f"<image> question {i} ?",
            "answer": "7",
            "images": [{"bytes": p, "path": None}],
        }
        for i, p in enumerate(pictures)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)
    return pictures


def sample(text: str, *, is_right: bool) -> JudgedResponse:
    """A sample that says 7 where it is right, and nothing else."""
    return JudgedResponse(
        text=text,
        num_tokens=12,
        is_truncated=False,
        accuracy=float(is_right),
        format=1.0,
        extracted="7" if is_right else None,
        reason="right" if is_right else "no_answer",
    )


def vectors(spread: float, num: int = NUM_SAMPLES) -> np.ndarray:
    """[num, 4] unit rows around three directions; a spread of 0 makes all of them equal."""
    rows = np.tile([1.0, 0.0, 0.0, 0.0], (num, 1))
    for i in range(num):
        rows[i, i % 3 + 1] += spread * (1.0 + 0.1 * (i // 3))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows.astype(np.float32)


def write_evaluation(
    folder: Path,
    num_right: Sequence[int],
    *,
    spread: float = 0.8,
    text: str = "because of it",
    data: Path | None = None,
) -> Path:
    """An evaluation of one set, `heldout`.

    Args:
        folder: is made; its name is the model's.
        num_right: right samples of each problem, out of `NUM_SAMPLES`.
        spread: of the reasoning, as `vectors` takes it.
        text: of every sample, with the number of its way of reasoning after it.
        data: file that `write_data` wrote.
    """
    problems = [
        EvaluatedProblem(
            set_name="heldout",
            prompt_id=f"id{position}",
            position=position,
            question=f"<image> question {position} ?",
            answer="7",
            category=("odd", "even")[position % 2],
            image_sha256=(hashlib.sha256(png(10 * position)).hexdigest(),),
            greedy=sample("at once", is_right=count > 4),
            samples=tuple(
                sample(f"{text} {i % 3 if spread else 0}", is_right=i < count)
                for i in range(NUM_SAMPLES)
            ),
            embeddings=vectors(spread),
        )
        for position, count in enumerate(num_right)
    ]
    save_problems(folder / "heldout" / "samples.parquet", problems)
    sampling = SamplingSettings(
        num_samples=NUM_SAMPLES, temperature=1.0, top_p=1.0, max_new_tokens=32, seed=0
    )
    results = measure_evaluation(
        {"heldout": problems},
        model=folder.name,
        created="2026-01-01T00:00:00+00:00",
        sampling=sampling,
        ks=[1, 4, 16],
    )
    if data is not None:
        found = replace(results.sets["heldout"], data=str(data))
        results = replace(results, sets={"heldout": found})
    save_results(folder / "results.json", results)
    return folder


def write_run(folder: Path, shares: dict[int, float], **collapse: object) -> Path:
    """A run whose diversity is 0.4 at step 0 and then these shares of it, as its loop records it.

    Args:
        folder: of the run.
        shares: step -> share.
        collapse: the run's settings of the alarm.
    """
    rows = [{"step": 0, "eval/heldout/acc@1": 0.5, "eval/heldout/diversity": 0.4}]
    rows += [
        {
            "step": step,
            "eval/heldout/acc@1": 0.5,
            "eval/heldout/diversity": 0.4 * share,
            "collapse/diversity_ratio": share,
            "collapse/alarm": float(share < 0.5),
        }
        for step, share in shares.items()
    ]
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "run.json").write_text(json.dumps({"config": {"collapse": collapse}}))
    return folder
