"""Judged samples of evaluated problems: what measures, comparisons and reports read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mupo_ray.errors import DataError
from mupo_ray.files import whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

SAMPLES_FILE = "samples.parquet"
"""Name of the file in the folder of an evaluation's set."""

_RESPONSE = pa.struct(
    [
        ("text", pa.string()),
        ("num_tokens", pa.int32()),
        ("is_truncated", pa.bool_()),
        ("accuracy", pa.float64()),
        ("format", pa.float64()),
        ("extracted", pa.string()),
        ("reason", pa.string()),
        ("score", pa.float64()),
    ]
)
_SCHEMA = pa.schema(
    [
        ("set_name", pa.string()),
        ("prompt_id", pa.string()),
        ("position", pa.int64()),
        ("question", pa.string()),
        ("answer", pa.string()),
        ("category", pa.string()),
        ("meta", pa.map_(pa.string(), pa.string())),
        ("image_sha256", pa.list_(pa.string())),
        ("greedy", _RESPONSE),
        ("samples", pa.list_(_RESPONSE)),
        ("embeddings", pa.list_(pa.list_(pa.float32()))),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedResponse:
    """One answer of the evaluated model, with its verdict."""

    text: str
    num_tokens: int
    is_truncated: bool
    """True where the token limit ended it."""
    accuracy: float
    """1.0 right, 0.0 not; a model judge may say something between."""
    format: float
    extracted: str | None
    reason: str
    """Value of `mupo_ray.types.Reason`."""
    score: float | None = None
    """What a scorer that does not know the gold answer says, higher is better; for best-of-k. None
    where nothing scored it."""

    @property
    def is_correct(self) -> bool:
        """True where the answer is right."""
        return self.accuracy >= 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedProblem:
    """One problem of an evaluation set with all that a model answered to it."""

    set_name: str
    prompt_id: str
    """Content hash of the row; the same row has the same id in every run."""
    position: int
    """Place in the set."""
    question: str
    answer: str
    """Gold answer as text."""
    category: str | None = None
    meta: dict[str, str] = field(default_factory=dict)
    """Other text columns of the row."""
    image_sha256: tuple[str, ...] = ()
    greedy: JudgedResponse | None = None
    """The answer at temperature 0; None where it was not asked for."""
    samples: tuple[JudgedResponse, ...] = ()
    """n sampled answers, in order of their seeds."""
    embeddings: np.ndarray | None = None
    """[n, D] float32 unit rows of the samples' reasoning; None where nothing was embedded."""

    @property
    def num_correct(self) -> int:
        """Right ones of the samples."""
        return sum(response.is_correct for response in self.samples)


def save_problems(path: Path, problems: Sequence[EvaluatedProblem]) -> None:
    """Write problems as parquet, one row each; whole or not at all."""
    with whole(path) as draft:
        pq.write_table(pa.Table.from_pylist([_row(p) for p in problems], schema=_SCHEMA), draft)


def load_problems(path: Path) -> list[EvaluatedProblem]:
    """Read what `save_problems` wrote.

    Raises:
        DataError: there is no such file, or it holds something else.
    """
    try:
        missing = set(_SCHEMA.names) - set(pq.read_schema(path).names)
        if missing:
            raise DataError(
                f"{path} lacks the columns {sorted(missing)}; expected the samples of an "
                "evaluation as this version writes them"
            )
        return [_problem(row) for row in pq.read_table(path, schema=_SCHEMA).to_pylist()]
    except (OSError, pa.ArrowException) as err:
        raise DataError(f"{path}: {err}; expected the samples of an evaluation") from err


def _row(problem: EvaluatedProblem) -> dict[str, Any]:
    row = {name: getattr(problem, name) for name in _SCHEMA.names}
    row["meta"] = list(problem.meta.items())
    row["greedy"] = None if problem.greedy is None else _response_row(problem.greedy)
    row["samples"] = [_response_row(response) for response in problem.samples]
    if problem.embeddings is not None:
        row["embeddings"] = problem.embeddings.tolist()
    return row


def _response_row(response: JudgedResponse) -> dict[str, Any]:
    return {name: getattr(response, name) for name in _names(_RESPONSE)}


def _names(struct: pa.StructType) -> Iterable[str]:
    return (struct.field(i).name for i in range(struct.num_fields))


def _problem(row: dict[str, Any]) -> EvaluatedProblem:
    vectors = row["embeddings"]
    return EvaluatedProblem(
        **{
            **row,
            "meta": dict(row["meta"]),
            "image_sha256": tuple(row["image_sha256"]),
            "greedy": None if row["greedy"] is None else JudgedResponse(**row["greedy"]),
            "samples": tuple(JudgedResponse(**response) for response in row["samples"]),
            "embeddings": None if vectors is None else np.asarray(vectors, np.float32),
        }
    )
