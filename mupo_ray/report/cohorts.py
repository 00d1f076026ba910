"""Sampled cohorts as a person reads them: picture, question, and the responses by group."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from mupo_ray.data.stream import PromptOrder
from mupo_ray.report.pictures import Pictures, open_pictures, pictures_html
from mupo_ray.report.responses import answer_note, ask_html, response_html

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mupo_ray.runs.summary import RunFiles

COHORTS_SHOWN = 2
"""Cohorts of a saved step, from the start of its file."""

_COLUMNS = (
    *("prompt_id", "position", "question", "answer", "image_sha256", "response_index", "text"),
    *("finish_reason", "extracted", "accuracy", "reason", "group_id"),
    *("reward", "reward_parts", "advantage"),
)


@dataclass(frozen=True, slots=True)
class RunPictures:
    """Pictures of a run's prompts, from its data file."""

    pictures: Pictures
    seed: int

    def of(self, position: int, hashes: Sequence[str]) -> list[bytes | None]:
        """As `Pictures.of`, for the prompt at a place in the run's sequence."""
        table = self.pictures.table
        if table is None:
            return [None] * len(hashes)
        order = PromptOrder(num_rows=table.num_rows, seed=self.seed)
        return self.pictures.of(order.rows([position])[0], hashes)


def run_pictures(run: RunFiles) -> RunPictures:
    """The pictures of a run, as far as its data file is still where it was."""
    config = run.record.get("config", {})
    data = str(config.get("data", {}).get("train") or "")
    return RunPictures(open_pictures(data), int(config.get("run", {}).get("seed", 0)))


def cohort_steps(run: RunFiles) -> list[tuple[int, list[list[dict[str, Any]]]]]:
    """The first cohorts of the first and the last step saved.

    Returns:
        For each of the two: finished steps of the policy that sampled, and rows by cohort.
    """
    files = sorted((run.folder / "rollouts").glob("step_*.parquet"))
    chosen = files if len(files) <= 2 else [files[0], files[-1]]
    found = []
    for file in chosen:
        rows = pq.read_table(file, columns=list(_COLUMNS)).to_pylist()
        cohorts: dict[tuple[str, int], list[dict[str, Any]]] = {}
        for row in rows:
            cohorts.setdefault((row["prompt_id"], row["position"]), []).append(row)
        step = int(file.stem.removeprefix("step_"))
        found.append((step, list(cohorts.values())[:COHORTS_SHOWN]))
    return found


def cohort_html(rows: Sequence[dict[str, Any]], pictures: RunPictures) -> str:
    """One cohort.

    Args:
        rows: a row a response, as `records.cohort_rows` makes them.
        pictures: of the run.
    """
    first = rows[0]
    shown = pictures.of(first["position"], first["image_sha256"] or [])
    num_right = sum(map(_is_right, rows))
    groups: dict[int, list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda r: (r["group_id"], r["response_index"])):
        groups.setdefault(row["group_id"], []).append(row)
    body = "".join(_group(number, group, len(groups)) for number, group in groups.items())
    facts = (
        f"<p>Gold answer <b>{html.escape(first['answer'])}</b>. {num_right} of {len(rows)} "
        "responses are right.</p>"
    )
    ask = ask_html(pictures_html(shown), first["question"], facts)
    return f'<article class="cohort">{ask}{body}</article>'


def _group(number: int, rows: Sequence[dict[str, Any]], num_groups: int) -> str:
    head = ""
    if num_groups > 1:
        num_right = sum(map(_is_right, rows))
        mean = sum(row["reward"] for row in rows) / len(rows)
        head = (
            f"<h5>Group {number + 1}: {len(rows)} responses, {num_right} right, mean reward "
            f"{mean:.2f}</h5>"
        )
    return f'{head}<ul class="responses">{"".join(map(_response, rows))}</ul>'


def _is_right(row: dict[str, Any]) -> bool:
    return bool(row["accuracy"] >= 1.0)  # As `Verdict.is_correct`: a model may have judged it.


def _response(row: dict[str, Any]) -> str:
    parts = " + ".join(
        f"{html.escape(name)} {value:.2f}"
        for name, value in row["reward_parts"].items()
        if value is not None
    )
    notes = [f"reward {row['reward']:.2f} = {parts}", f"advantage {row['advantage']:+.2f}"]
    if row["extracted"] is not None:
        notes.insert(0, answer_note(row["extracted"]))
    if row["finish_reason"] == "length":
        notes.append("cut at the token limit")
    return response_html(row["text"], row["reason"], notes, is_right=_is_right(row))
