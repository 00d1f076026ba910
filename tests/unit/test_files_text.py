"""Files that are whole or not there, lines with a torn end, and tables."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mupo_ray.files import read_jsonl, sha256_of, whole, write_json, write_jsonl, write_text
from mupo_ray.text import first_line, markdown_table, number, short, table


def test_a_file_is_replaced_whole_and_a_failure_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.txt"
    write_text(path, "old")

    def fail_in_the_middle() -> None:
        with whole(path) as draft:
            draft.write_text("half")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail_in_the_middle()
    assert path.read_text() == "old"
    write_text(path, "new")
    assert path.read_text() == "new"
    assert [p.name for p in path.parent.iterdir()] == ["a.txt"]


def test_lines_come_back_and_a_torn_last_one_is_none(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    assert read_jsonl(path) == []
    write_jsonl(path, [{"a": 1}, {"a": "\u2028"}])
    with path.open("ab") as file:
        # Cut in the middle of a character.
        file.write('{"a": "\u00e9'.encode()[:-1])
    assert read_jsonl(path) == [{"a": 1}, {"a": "\u2028"}]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"a": 1', "rows.jsonl:2: .*expected a JSON object"),
        ("[1]", "rows.jsonl:2: got list, expected a JSON object"),
    ],
)
def test_a_broken_line_in_the_midst_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"a": 1}}\n{line}\n{{"a": 2}}\n')
    with pytest.raises(ValueError, match=message):
        read_jsonl(path)


def test_json_is_readable(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"b": [1]})
    assert (tmp_path / "a.json").read_text() == '{\n "b": [\n  1\n ]\n}\n'


def test_hash() -> None:
    assert sha256_of("abc", 8) == sha256_of(b"abc")[:8] == "ba7816bf"


def test_number() -> None:
    assert [number(x) for x in (None, float("nan"), 0.12345)] == ["-", "-", "0.123"]
    assert number(12, "d") == "12"


def test_short() -> None:
    assert short("a\n b", 3) == "a b"
    assert short("abcdef", 5) == "ab..."


def test_first_line() -> None:
    assert first_line(ValueError("\none\ntwo")) == "one"
    assert first_line(OSError()) == "OSError"


def test_tables() -> None:
    rows = [["", "x"], ["name", "12.5"]]
    assert table(rows) == "         x\nname  12.5"
    assert table(rows, indent="> ", least=6) == ">            x\n> name    12.5"
    assert markdown_table(["a"], [["b|c"]]) == "| a |\n| --- |\n| b\\|c |"
    assert re.fullmatch(r"\S+", table([["one"]]))
