"""`jobs/grade.py` on files as people have them: bad rows, options, long files, half-done output."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mupo_ray.errors import DataError
from mupo_ray.rewards import grade_file as module
from mupo_ray.rewards.algebra_pool import default_algebra_pool
from mupo_ray.rewards.grade_file import grade_file

ROOT = Path(__file__).resolve().parents[2]
GOOD = {"response": "<think>a</think>\\boxed{5}", "gold": "5"}


@pytest.fixture
def grade(tmp_path: Path) -> Any:
    def run(lines: list[str | bytes], **options: Any) -> list[dict[str, Any]]:
        source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
        source.write_bytes(
            b"".join((x if isinstance(x, bytes) else x.encode()) + b"\n" for x in lines)
        )
        grade_file(source, target, algebra_pool=default_algebra_pool(), **options)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]
        return [json.loads(line) for line in target.read_text(encoding="utf-8").splitlines()]

    return run


def test_rows_come_out_in_order_with_all_they_had(grade: Any) -> None:
    rows = [
        GOOD | {"id": 1, "nested": {"a": [1]}},
        {"response": "\\boxed{6}", "gold": "5"},
        {"response": "none", "gold": "5"},
        {"response": "\\boxed{5}", "gold": ""},
        {"response": "\\boxed{5}", "gold": None},
        {"response": "\\boxed{5}"},
        {"response": "\\boxed{red}", "gold": "A", "options": {"A": "red", "B": "blue"}},
        {"response": "\\boxed{\uff15}", "gold": "5", "note": "\u4e94"},
    ]
    graded = grade([json.dumps(row) for row in rows])
    assert [row["reason"] for row in graded] == [
        *("right", "wrong", "no_answer", "no_gold", "no_gold", "no_gold", "right", "right")
    ]
    assert [row["accuracy"] for row in graded] == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0]
    assert [row["format"] for row in graded] == [1.0, *[0.0] * 7]
    assert [row["extracted"] for row in graded] == ["5", "6", None, *["5"] * 3, "red", "\uff15"]
    added = {"accuracy", "format", "extracted", "reason"}
    assert [{k: v for k, v in row.items() if k not in added} for row in graded] == rows


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("{", "not JSON"),
        ("", "not JSON"),
        ("[1]", "got a list, should be an object"),
        ('{"gold": "5"}', "response is missing"),
        ('{"response": 5, "gold": "5"}', "response is a number, should be text"),
        ('{"response": null, "gold": "5"}', "response is null, should be text"),
        ('{"response": "a", "gold": 5}', "gold is a number, should be text"),
        ('{"response": "a", "gold": ["5"]}', "gold is a list, should be text"),
        ('{"response": "a", "gold": "B", "options": ["x"]}', "options: got ['x']"),
        ('{"response": "a", "gold": "B", "options": {"AB": "x"}}', "got 'AB' as a letter"),
        ('{"response": "a", "gold": "B", "options": {"A": 5}}', "got 5 for A"),
        ('{"response": "a", "gold": NaN}', "NaN is no JSON"),
        ('{"response": "a", "gold": ' + "9" * 5000 + "}", "not JSON"),
        ("[" * 100_000, "not JSON"),
        (b'{"response": "\xff", "gold": "5"}', "not JSON"),
    ],
)
def test_a_bad_row_says_what_is_wrong_and_stops_no_other(
    grade: Any, line: str | bytes, error: str
) -> None:
    first, bad, last = grade([json.dumps(GOOD), line, json.dumps(GOOD)])
    assert (first["reason"], last["reason"]) == ("right", "right")
    assert bad["reason"] == "bad_row"
    assert (bad["accuracy"], bad["format"], bad["extracted"]) == (0.0, 0.0, None)
    assert bad["error"].startswith("line 2: ")
    assert error in bad["error"]


def test_half_a_surrogate_pair_comes_back(grade: Any) -> None:
    (row,) = grade(['{"response": "\\\\boxed{\\ud800}", "gold": "5"}'])
    assert (row["extracted"], row["reason"]) == ("\ud800", "wrong")


def test_a_line_over_the_limit_is_one_bad_row(grade: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LINE_BYTES", 200)
    long = json.dumps({"response": "x" * 1000, "gold": "5"})
    graded = grade([json.dumps(GOOD), long, json.dumps(GOOD)])
    assert [row["reason"] for row in graded] == ["right", "bad_row", "right"]


def test_format_where_the_template_opened_the_reasoning_a81(grade: Any) -> None:
    opened = {"response": "a</think>\\boxed{5}", "gold": "5"}
    rows = [opened, opened | {"prompt_suffix": "<think>\n"}, opened | {"prompt_suffix": "x"}]
    lines = [json.dumps(row) for row in rows]
    assert [row["format"] for row in grade(lines)] == [0.0, 1.0, 0.0]
    assert [row["format"] for row in grade(lines, prompt_suffix="<think>")] == [1.0, 1.0, 0.0]


def test_the_output_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text((json.dumps(GOOD) + "\n") * 3)
    target.write_text("before\n")
    monkeypatch.setattr(module, "CHUNK_ROWS", 1)
    monkeypatch.setattr(module, "_line", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        grade_file(source, target, algebra_pool=default_algebra_pool())
    assert target.read_text() == "before\n"
    assert len(list(tmp_path.iterdir())) == 2


def test_a_file_may_be_graded_in_place(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(GOOD) + "\n")
    grade_file(path, path, algebra_pool=default_algebra_pool())
    assert json.loads(path.read_text())["reason"] == "right"


@pytest.mark.parametrize(("source", "target"), [("no.jsonl", "out"), ("in.jsonl", "no/out")])
def test_files_that_cannot_be_used_are_named(tmp_path: Path, source: str, target: str) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps(GOOD) + "\n")
    with pytest.raises(DataError, match="no.*No such file"):
        grade_file(tmp_path / source, tmp_path / target, algebra_pool=default_algebra_pool())


_MEMORY = """
import resource, sys
from pathlib import Path
from mupo_ray.rewards.grade_file import grade_file
from mupo_ray.rewards.algebra_pool import AlgebraPool
with AlgebraPool(num_workers=1) as pool:
    grade_file(Path(sys.argv[1]), Path(sys.argv[2]), algebra_pool=pool)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    peaks = []
    for num_rows in (2_000, 20_000):
        source = tmp_path / f"{num_rows}.jsonl"
        with source.open("w") as file:
            for k in range(num_rows):
                text = f"<think>{'work ' * 400}</think>\\boxed{{{k}}}"
                file.write(json.dumps({"response": text, "gold": str(k % 7)}) + "\n")
        done = subprocess.run(
            [sys.executable, "-c", _MEMORY, str(source), str(tmp_path / "out")],
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
        )
        peaks.append(int(done.stdout))
    assert peaks[1] < peaks[0] + 20, f"MB at 2,000 and 20,000 rows: {peaks}"


def test_the_job_ends_with_a_table_or_one_message(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(json.dumps(GOOD) + "\n{\n")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(ROOT / "jobs" / "grade.py"), *arguments],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=120,
        )

    done = run("--input", str(source), "--output", "out.jsonl")
    assert done.returncode == 0, done.stderr
    assert "2 rows" in done.stdout
    assert "right" in done.stdout
    assert "bad_row" in done.stdout
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 2
    failed = run("--input", "none.jsonl", "--output", "other.jsonl")
    assert failed.returncode == 1
    assert failed.stderr == "error: none.jsonl: No such file or directory\n"
    assert not (tmp_path / "other.jsonl").exists()
