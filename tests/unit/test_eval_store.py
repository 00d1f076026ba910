"""Responses on disk: what a killed writer leaves, and what must not be mixed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mupo_ray.data.fingerprint import fingerprint_of, fingerprint_of_model
from mupo_ray.errors import CheckpointError
from mupo_ray.evaluation.store import Kind, ResponseStore
from mupo_ray.types import SampledResponse

DEPENDS = {"model": "aa11", "temperature": 1.0, "system_prompt": None}
ABOUT = {"model": "runs/a"}


def response(text: str) -> SampledResponse:
    return SampledResponse(text=text, num_tokens=len(text), is_truncated=False)


def opened(path: Path, **changed: object) -> ResponseStore:
    return ResponseStore(path, DEPENDS | changed, ABOUT)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "set" / "responses.jsonl"


@pytest.fixture
def filled(path: Path) -> bytes:
    with opened(path) as store:
        store.add("p1", Kind.GREEDY, [response("one\u2028\n\t\ud7ff")])
        store.add("p1", Kind.SAMPLES, [response("a"), response("")])
        store.add("p2", Kind.SAMPLES, [response("b"), response("c")])
    return path.read_bytes()


def test_what_was_added_is_there_after_opening_again(path: Path, filled: bytes) -> None:
    with opened(path) as store:
        assert store.get("p1", Kind.GREEDY) == (response("one\u2028\n\t\ud7ff"),)
        assert store.get("p1", Kind.SAMPLES) == (response("a"), response(""))
        assert store.get("p2", Kind.GREEDY) is None
    assert path.read_bytes() == filled


def test_a_file_cut_anywhere_loses_only_its_last_line(path: Path, filled: bytes) -> None:
    lines = filled.splitlines(keepends=True)
    ends = [i for i, byte in enumerate(filled) if byte == 10]
    for size in {*range(0, len(filled), 19), *ends, *(end + 1 for end in ends)}:
        path.write_bytes(filled[:size])
        with opened(path) as store:
            found = [store.get("p1", Kind.GREEDY), store.get("p1", Kind.SAMPLES)]
            found.append(store.get("p2", Kind.SAMPLES))
        whole = filled[:size].count(b"\n")
        assert [answer is not None for answer in found] == [whole > 1, whole > 2, whole > 3]
        assert path.read_bytes() == b"".join(lines[: max(1, whole)])


def test_another_evaluation_is_refused_by_what_differs(path: Path, filled: bytes) -> None:
    for changed, words in (
        ({"temperature": 0.7}, r"\(temperature: 1.0 then, 0.7 now\)"),
        ({"model": "bb22"}, r"model: runs/a \(aa11\) then, runs/a \(bb22\) now"),
        ({"seed": 3}, "seed: None then, 3 now"),
        ({"system_prompt": ""}, "system_prompt: None then, '' now"),
    ):
        with pytest.raises(CheckpointError, match=words + ".*; choose another --out, or"):
            opened(path, **changed)
    assert path.read_bytes() == filled


@pytest.mark.parametrize(
    ("number", "line"),
    [(2, b"{nonsense\n"), (3, b'{"prompt_id": "p"}\n'), (1, b"[]\n"), (2, b'{"kind": "odd"}\n')],
)
def test_a_broken_line_is_named(path: Path, filled: bytes, number: int, line: bytes) -> None:
    lines = filled.splitlines(keepends=True)
    lines[number - 1] = line
    path.write_bytes(b"".join(lines))
    with pytest.raises(CheckpointError, match=rf"responses.jsonl, line {number}: .*expected"):
        opened(path)


def test_a_file_of_another_format_is_refused(path: Path, filled: bytes) -> None:
    path.write_bytes(filled.replace(b'"format": 1', b'"format": 99'))
    with pytest.raises(CheckpointError, match="format 99, expected 1"):
        opened(path)


def test_two_writers_at_a_time_are_one_too_many(path: Path, filled: bytes) -> None:
    with opened(path), pytest.raises(CheckpointError, match="written by another process"):
        opened(path)
    opened(path).close()


def test_lines_hold_text_as_it_is(path: Path, filled: bytes) -> None:
    header, first = (json.loads(line) for line in filled.splitlines()[:2])
    assert header["depends_on"] == DEPENDS
    assert first["responses"][0]["text"] == "one\u2028\n\t\ud7ff"
    assert "\u2028" in filled.decode()


def test_fingerprints_follow_contents_and_not_places(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").write_text("{}")
        (tmp_path / folder / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "b" / "notes.md").write_text("not part of the model")
    first, second = (fingerprint_of_model(tmp_path / folder) for folder in ("a", "b"))
    assert first == second
    (tmp_path / "b" / "model.safetensors").write_bytes(b"weighty")
    assert fingerprint_of_model(tmp_path / "b") != first
    assert fingerprint_of([]) != first


@pytest.mark.parametrize("place", [0, 4 * 64 * 2**20 // 15, 65 * 2**20 - 1])
def test_fingerprint_of_a_large_file_looks_into_it(tmp_path: Path, place: int) -> None:
    # Sparse, so that nothing large is written: ends, and the start of the fifth of 16 pieces.
    path = tmp_path / "model.safetensors"
    with path.open("wb") as stream:
        stream.truncate(65 * 2**20)
    before = fingerprint_of([path])
    with path.open("r+b") as stream:
        stream.seek(place)
        stream.write(b"x")
    assert fingerprint_of([path]) != before
