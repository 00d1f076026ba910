"""Files of judged samples."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from eval_problems import RIGHT, problem

from mupo_ray.errors import DataError
from mupo_ray.evaluation.samples import EvaluatedProblem, load_problems, save_problems


def test_round_trip(tmp_path: Path):
    vectors = np.random.default_rng(0).normal(size=(2, 5)).astype(np.float32)
    full = problem("x", [RIGHT, None], greedy=RIGHT, scores=[0.5, -1.0], embeddings=vectors)
    full = replace(full, category="a", meta={"source": "s"}, image_sha256=("f", "g"))
    problems = [full, problem("y", [])]
    save_problems(tmp_path / "heldout" / "samples.parquet", problems)
    found = load_problems(tmp_path / "heldout" / "samples.parquet")
    assert [p.name for p in (tmp_path / "heldout").iterdir()] == ["samples.parquet"]
    for ours, theirs in zip(problems, found, strict=True):
        for field in fields(EvaluatedProblem):
            mine, other = getattr(ours, field.name), getattr(theirs, field.name)
            if isinstance(mine, np.ndarray):
                assert other.dtype == np.float32 and (mine == other).all()
            else:
                assert mine == other, field.name
    save_problems(tmp_path / "none.parquet", [])
    assert load_problems(tmp_path / "none.parquet") == []


def test_other_files_are_refused(tmp_path: Path):
    path = tmp_path / "other.parquet"
    pq.write_table(pa.table({"prompt_id": ["x"], "texts": [["a"]]}), path)
    with pytest.raises(DataError, match=r"lacks the columns \['answer', .*expected the samples"):
        load_problems(path)
    path.write_text("{}")
    with pytest.raises(DataError, match=r"other.parquet: .*; expected the samples"):
        load_problems(path)
    with pytest.raises(DataError, match=r"nothing.parquet: .*; expected the samples"):
        load_problems(tmp_path / "nothing.parquet")
