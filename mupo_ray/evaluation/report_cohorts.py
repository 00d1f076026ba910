"""Sampled cohorts as a person reads them: picture, question, and the responses by group."""

from __future__ import annotations

import base64
import hashlib
import html
import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
from PIL import Image

from mupo_ray.data.images import decode_image
from mupo_ray.data.schema import open_table
from mupo_ray.data.stream import PromptOrder
from mupo_ray.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mupo_ray.data.schema import PromptTable
    from mupo_ray.evaluation.summary import RunFiles

COHORTS_SHOWN = 2
"""Cohorts of a saved step, from the start of its file."""

# A picture up to this size is embedded as it is; a larger one is shrunk, or the report would grow
# to megabytes.
_MAX_PICTURE_BYTES = 64 * 1024
_MAX_PICTURE_SIDE = 480
_MAX_TEXT = 3000
_MIME = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif"}
_COLUMNS = (
    *("prompt_id", "position", "question", "answer", "image_sha256", "response_index", "text"),
    *("finish_reason", "extracted", "accuracy", "reason", "group_id"),
    *("reward", "reward_parts", "advantage"),
)


@dataclass(frozen=True, slots=True)
class Pictures:
    """Pictures of a run's prompts, from its data file."""

    table: PromptTable | None
    """None where the file is not to be found."""
    seed: int

    def of(self, position: int, hashes: Sequence[str]) -> list[bytes | None]:
        """Encoded pictures of the prompt at a position, each None where it is not at hand.

        Args:
            position: place of the prompt in the run's sequence.
            hashes: sha256 of each picture's encoded bytes; the data file's must have the same.
        """
        missing: list[bytes | None] = [None] * len(hashes)
        if self.table is None or not hashes:
            return missing
        number = PromptOrder(num_rows=self.table.num_rows, seed=self.seed).rows([position])
        try:
            row = self.table.read(number)[0]
            found = [
                ref.encoded or (Path(row.folder) / str(ref.path)).read_bytes() for ref in row.images
            ]
            same = [hashlib.sha256(data).hexdigest() for data in found] == list(hashes)
        except (OSError, DataError):
            return missing
        return [*found] if same else missing


def open_pictures(run: RunFiles) -> Pictures:
    """The pictures of a run, as far as its data file is still where it was."""
    config = run.record.get("config", {})
    try:
        table = open_table(str(config.get("data", {}).get("train", "")))
    except DataError:
        table = None
    return Pictures(table, int(config.get("run", {}).get("seed", 0)))


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


def cohort_html(rows: Sequence[dict[str, Any]], pictures: Pictures) -> str:
    """One cohort.

    Args:
        rows: a row a response, as `records.cohort_rows` makes them.
        pictures: of the run.
    """
    first = rows[0]
    question = html.escape(first["question"].replace("<image>", "").strip())
    shown = pictures.of(first["position"], first["image_sha256"] or [])
    images = "".join(_picture(data, i, len(shown)) for i, data in enumerate(shown))
    num_right = sum(map(_is_right, rows))
    groups: dict[int, list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda r: (r["group_id"], r["response_index"])):
        groups.setdefault(row["group_id"], []).append(row)
    body = "".join(_group(number, group, len(groups)) for number, group in groups.items())
    return (
        f'<article class="cohort"><div class="ask">{images}<div><p class="question">{question}</p>'
        f"<p>Gold answer <b>{html.escape(first['answer'])}</b>. {num_right} of {len(rows)} "
        f"responses are right.</p></div></div>{body}</article>"
    )


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
    is_right = _is_right(row)
    parts = " + ".join(
        f"{html.escape(name)} {value:.2f}"
        for name, value in row["reward_parts"].items()
        if value is not None
    )
    notes = [f"reward {row['reward']:.2f} = {parts}", f"advantage {row['advantage']:+.2f}"]
    if row["extracted"] is not None:
        notes.insert(0, f"answer {html.escape(row['extracted'][:80])}")
    if row["finish_reason"] == "length":
        notes.append("cut at the token limit")
    text = row["text"].strip()
    if len(text) > _MAX_TEXT:
        text = f"{text[:_MAX_TEXT]} ... ({len(text) - _MAX_TEXT} characters more)"
    verdict = html.escape(row["reason"].replace("_", " "))
    return (
        f'<li class="{"right" if is_right else "wrong"}"><b class="verdict">{verdict}</b>'
        f'<div><p class="text">{html.escape(text)}</p>'
        f'<p class="notes">{" &middot; ".join(notes)}</p></div></li>'
    )


def _picture(data: bytes | None, index: int, total: int) -> str:
    name = "picture of the question" + (f", {index + 1} of {total}" if total > 1 else "")
    if data is None:
        return '<div class="nopicture">picture not found in the data file</div>'
    kind = next((mime for magic, mime in _MIME.items() if data.startswith(magic)), None)
    if kind is None or len(data) > _MAX_PICTURE_BYTES:
        kind, data = "jpeg", _shrunk(data)
    encoded = base64.b64encode(data).decode()
    return f'<img alt="{name}" src="data:image/{kind};base64,{encoded}">'


def _shrunk(data: bytes) -> bytes:
    picture = decode_image(data)
    image = Image.frombytes("RGB", (picture.width, picture.height), picture.rgb)
    image.thumbnail((_MAX_PICTURE_SIDE, _MAX_PICTURE_SIDE))
    out = io.BytesIO()
    image.save(out, "JPEG", quality=85)
    return out.getvalue()
