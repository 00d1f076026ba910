"""Sampled responses on disk as they arrive, so that an evaluation can be killed and go on.

    responses.jsonl    line 1   what the responses depend on
                       others   the answers to one request each: prompt, kind, responses

A line is written at once. What a killed writer left of its last line is dropped when the file is
opened again; a broken line elsewhere is an error.
"""

from __future__ import annotations

import fcntl
import json
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self

from mupo_ray.errors import CheckpointError
from mupo_ray.types import SampledResponse

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

STORE_FILE = "responses.jsonl"
_FORMAT = 1


class Kind(StrEnum):
    """What was asked of a prompt."""

    GREEDY = "greedy"
    """One response at temperature 0."""
    SAMPLES = "samples"
    """n sampled responses."""


class ResponseStore:
    """The responses of one set, in memory and in a file of its own."""

    def __init__(self, path: Path, depends_on: Mapping[str, Any], about: Mapping[str, str]) -> None:
        """Open or begin a file; it is this process's until `close`.

        Args:
            path: the file; its folder is made where missing.
            depends_on: name -> plain value of everything that decides a response. A file begun
                with other values is refused.
            about: name -> what a value that says nothing to a person stands for.

        Raises:
            CheckpointError: it holds responses that depend on something else, a line of it is
                broken, or another process has it open.
        """
        self._path = path
        self._answers: dict[tuple[str, Kind], tuple[SampledResponse, ...]] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        # Unbuffered: each line is one write.
        self._file = path.open("a+b", buffering=0)
        try:
            self._lock()
            self._read({"format": _FORMAT, "depends_on": {**depends_on}, "about": {**about}})
        except BaseException:
            self._file.close()
            raise

    def get(self, prompt_id: str, kind: Kind) -> tuple[SampledResponse, ...] | None:
        """The responses to a request; None where it is not answered yet."""
        return self._answers.get((prompt_id, kind))

    def add(self, prompt_id: str, kind: Kind, responses: Sequence[SampledResponse]) -> None:
        """Keep the responses to a request."""
        self._answers[prompt_id, kind] = tuple(responses)
        self._write(
            {"prompt_id": prompt_id, "kind": kind, "responses": [asdict(r) for r in responses]}
        )

    def close(self) -> None:
        """Let others open the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CheckpointError(
                f"{self._path} is being written by another process; wait for it, or choose "
                "another --out"
            ) from None

    def _write(self, row: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")

    def _read(self, header: Mapping[str, Any]) -> None:
        self._file.seek(0)
        end = 0
        for number, line in enumerate(self._file, 1):
            if not line.endswith(b"\n"):
                break
            try:
                row = json.loads(line)
                if number == 1:
                    self._check_header(row, header)
                else:
                    answers = tuple(SampledResponse(**r) for r in row["responses"])
                    self._answers[row["prompt_id"], Kind(row["kind"])] = answers
            except (ValueError, KeyError, TypeError) as err:
                raise CheckpointError(
                    f"{self._path}, line {number}: {err!r}; expected the responses to a request. "
                    "Delete the line to sample them again"
                ) from err
            end += len(line)
        self._file.truncate(end)
        if end == 0:
            self._write(header)

    def _check_header(self, header: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
        if header["format"] != wanted["format"]:
            raise CheckpointError(
                f"{self._path} has format {header['format']}, expected {wanted['format']}; "
                "choose another --out"
            )
        then, now = header["depends_on"], wanted["depends_on"]
        changed = [name for name in {**then, **now} if then.get(name) != now.get(name)]
        if changed:
            changes = ", ".join(
                f"{name}: {_value(header, name)} then, {_value(wanted, name)} now"
                for name in changed
            )
            raise CheckpointError(
                f"{self._path} holds responses of another evaluation ({changes}); choose another "
                "--out, or the same values to go on with it"
            )


def _value(header: Mapping[str, Any], name: str) -> str:
    """What a header says of a thing, as a person reads it."""
    value = header["depends_on"].get(name)
    about = header["about"].get(name)
    return repr(value) if about is None else f"{about} ({value})"
