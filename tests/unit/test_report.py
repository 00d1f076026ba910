"""The report: figures by hand, a page that is safe and needs no network."""

from __future__ import annotations

import base64
import hashlib
import html
import io
import json
import re
import runpy
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from eval_folders import write_run
from markupsafe import escape
from PIL import Image

from mupo_ray.data.stream import PromptOrder
from mupo_ray.errors import CheckpointError, ConfigError
from mupo_ray.evaluation.samples import EvaluatedProblem, JudgedResponse, save_problems
from mupo_ray.report.plots import smooth, window_of
from mupo_ray.report.run_page import write_report
from mupo_ray.runs.records import save_rows
from mupo_ray.runs.summary import comparison_table, summarise_run

HOSTILE = '<script>alert("1")</script> & <img src="http://example.org/x.png"> x < y $a_1$'
JOB = runpy.run_path(str(Path(__file__).parents[2] / "jobs" / "report.py"))


def evaluation(acc_1: float, acc_4: float, diversity: float) -> dict[str, float]:
    """One evaluation's metrics."""
    figures = {
        "questions": 2.0,
        "acc@1": acc_1,
        "acc@1_sampled": 0.25,
        "acc@4": acc_4,
        "pass@1": 0.25,
        "pass@2": 0.5,
        "diversity": diversity,
        "effective_strategies": 1.0 + diversity,
    }
    return {f"eval/heldout/{name}": value for name, value in figures.items()}


def step(seconds: float, rollout: float, update: float) -> dict[str, float]:
    """One training step's metrics."""
    return {
        "time/step_s": seconds,
        "time/rollout_s": rollout,
        "time/update_s": update,
        "reward/accuracy/mean": 0.5,
        "loss/kl": 0.0,
        "sync/logprob_diff_max": 1e-6,
    }


def write_metrics(folder: Path, rows: dict[int, dict[str, float | None]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps({"step": number, **values}) + "\n" for number, values in rows.items())
    (folder / "metrics.jsonl").write_text("".join(lines))
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Four steps with evaluations at 0, 2 and 4."""
    return write_metrics(
        tmp_path / "mupo",
        {
            0: evaluation(0.5, 0.75, 0.4),
            1: step(2.0, 1.0, 0.5),
            2: step(9.0, 5.0, 1.5) | evaluation(0.6, 0.8, 0.3),
            3: step(4.0, 2.0, 1.0),
            4: step(3.0, 1.0, 1.0) | evaluation(0.7, 0.9, 0.2),
        },
    )


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A run without anything to plot."""
    return write_metrics(tmp_path / "mupo", {0: {}})


def cohort(position: int, sha: str, text: str = "plain") -> list[dict[str, object]]:
    """Four responses in two groups; the second is right."""
    return [
        {
            "prompt_id": f"p{position}",
            "position": position,
            "question": f"<image> how many {position} ?",
            "answer": "7",
            "image_sha256": [sha],
            "response_index": i,
            "text": text if i == 1 else "no idea",
            "finish_reason": "length" if i == 3 else "stop",
            "extracted": "7" if i == 1 else None,
            "accuracy": float(i == 1),
            "reason": "right" if i == 1 else "no_answer",
            "group_id": i // 2,
            "reward": 1.25 if i == 1 else 0.0,
            "reward_parts": {"accuracy": 0.9 * (i == 1), "diversity": 0.35 * (i == 1)},
            "advantage": 1.0 if i == 1 else -1.0,
        }
        for i in range(4)
    ]


def png(shade: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (8, 8), (shade, 0, 0)).save(out, "PNG")
    return out.getvalue()


def add_cohorts(run: Path, text: str = "plain") -> bytes:
    """Data of three rows, cohorts at positions 4 (picture there) and 5 (another hash)."""
    pictures = [png(shade) for shade in (10, 120, 250)]
    data = run.parent / "train.parquet"
    rows = [
        {"problem": "<image> q", "answer": "7", "images": [{"bytes": p, "path": None}]}
        for p in pictures
    ]
    pq.write_table(pa.Table.from_pylist(rows), data)
    config = {"data": {"train": str(data)}, "run": {"seed": 3, "name": run.name}}
    (run / "run.json").write_text(json.dumps({"config": config, "seeds": {"run": 3}}))
    shown = pictures[PromptOrder(num_rows=3, seed=3).rows([4])[0]]
    sha = hashlib.sha256(shown).hexdigest()
    for number in (0, 2, 3):
        save_rows(
            run / "rollouts" / f"step_{number:06d}.parquet",
            [*cohort(4, sha, text), *cohort(5, "0" * 64), *cohort(6, "0" * 64)],
        )
    return shown


class Loads(HTMLParser):
    """What a browser would load, the tags and the ids of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.tags: set[str] = set()
        self.ids: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "srcset", "data", "action"):
                self.targets.append(value or "")
            if name == "id":
                self.ids.append(value or "")


def test_summary_by_hand(run: Path) -> None:
    found = summarise_run(run)
    assert found.steps == 4
    assert found.base.as_dict() == {
        "acc@1": 0.5,
        "acc@1_sampled": 0.25,
        "acc@4": 0.75,
        "pass@k": {"1": 0.25, "2": 0.5},
        "diversity": 0.4,
        "effective_strategies": 1.4,
    }
    assert (found.final.step, found.final.acc_1, found.final.acc_4) == (4, 0.7, 0.9)
    # Steps 2 9 4 3; rollout 1 5 2 1; update .5 1.5 1 1; the rest .5 2.5 1 1.
    assert found.step_s == {"median": 3.5, "rollout": 1.5, "update": 1.0, "other": 1.0}
    assert json.loads(json.dumps(found.step_s)) == found.step_s


def test_comparison_table(run: Path, tmp_path: Path) -> None:
    grpo = write_metrics(tmp_path / "grpo", {0: evaluation(0.5, 0.75, 0.4), 1: step(1.0, 1.0, 0.0)})
    assert comparison_table({"grpo": grpo, "mupo": run}).splitlines() == [
        "                         base     grpo     mupo",
        "acc@1                   0.500        -    0.700",
        "acc@1_sampled           0.250        -    0.250",
        "acc@4                   0.750        -    0.900",
        "pass@2                  0.500        -    0.500",
        "diversity               0.400        -    0.200",
        "effective_strategies    1.400        -    1.200",
        "steps                       0        -        4",
        "s/step, median              -     1.00     3.50",
        "  rollout                   -     1.00     1.50",
        "  update                    -     0.00     1.00",
        "  other                     -     0.00     1.00",
    ]


def test_different_base_models_are_shown_apart(run: Path, tmp_path: Path) -> None:
    other = write_metrics(tmp_path / "other", {0: evaluation(0.1, 0.2, 0.4)})
    head, first, *_ = comparison_table({"mupo": run, "other": other}).splitlines()
    assert head.split("  ") != [] and "base of mupo" in head and "base of other" in head
    assert first.split() == ["acc@1", "0.500", "0.100", "0.700", "-"]


def test_a_line_being_written_and_nulls_are_left_out(run: Path) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 5, "loss/kl": None, "time/step_s": 3.5}) + "\n")
        file.write('{"step": 6, "ev')
    assert summarise_run(run).steps == 5
    assert summarise_run(run).step_s["median"] == 3.5


def test_smooth_by_hand() -> None:
    assert (window_of(23), window_of(24), window_of(60), window_of(10_000)) == (1, 3, 5, 51)
    values = np.zeros(24)
    values[5], values[0] = 3.0, 7.0
    want = np.zeros(24)
    # The end's window holds the end alone; its neighbour's holds three points.
    want[4:7], want[0], want[1] = 1.0, 7.0, 7.0 / 3.0
    np.testing.assert_allclose(smooth(values), want, atol=1e-12)


def test_page_escapes_text_and_loads_nothing(run: Path, tmp_path: Path) -> None:
    add_cohorts(run, HOSTILE)
    path = write_report({"<b>mupo": run}, tmp_path / "out" / "r.html", "a <title> & more")
    text = path.read_text()
    assert escape(HOSTILE) in text
    assert HOSTILE not in text and "<b>mupo" not in text and "<title> & more" not in text
    page = Loads(text)
    assert not page.tags & {"script", "link", "iframe", "object", "embed", "base"}
    assert page.targets and all(t.startswith(("data:image/", "#")) for t in page.targets)
    assert not re.findall(r"url\((?!#)", text) and "@import" not in text
    assert len(page.ids) == len(set(page.ids))
    assert {t[1:] for t in page.targets if t.startswith("#")} <= set(page.ids)
    assert list(path.parent.iterdir()) == [path]


def test_no_string_of_a_run_is_markup(run: Path, tmp_path: Path) -> None:
    add_cohorts(run)
    row = cohort(4, "0" * 64)[0] | {"question": HOSTILE, "answer": HOSTILE, "extracted": HOSTILE}
    row |= {"reason": HOSTILE, "reward_parts": {HOSTILE: 1.0}}
    save_rows(run / "rollouts" / "step_000000.parquet", [row])
    record = json.loads((run / "run.json").read_text())
    record["config"]["model"] = {HOSTILE: HOSTILE}
    (run / "run.json").write_text(json.dumps(record | {"packages": {HOSTILE: HOSTILE}}))
    text = write_report({HOSTILE: run}, tmp_path / "r.html", HOSTILE).read_text()
    page = Loads(text)
    assert "script" not in page.tags and all(t.startswith(("data:", "#")) for t in page.targets)
    samples = text[text.index('id="samples"') : text.index('id="settings"')]
    # Summaries of the two steps with the run's name; question, gold answer, answer found, reason
    # (its _ are spaces) and part of the reward.
    assert samples.count(escape(HOSTILE)) == 6
    assert samples.count(escape(HOSTILE.replace("_", " "))) == 1
    assert HOSTILE not in text


def test_plots_are_whole_and_described(run: Path, tmp_path: Path) -> None:
    text = write_report({"mupo": run}, tmp_path / "r.html", "t").read_text()
    plots = re.findall(r"<figure>.*?</figure>", text, re.DOTALL)
    headings = [re.findall("<h3>(.*?)</h3>", plot)[0] for plot in plots]
    assert headings == [
        *("acc@1, greedy", "acc@1, sampled", "acc@4", "Diversity", "Effective strategies"),
        *("pass@k, start and end", "Reward: right answers", "Sampler against trainer"),
        "mupo: time a step",
    ]
    for plot in plots:
        svg = plot[plot.index("<svg") : plot.index("</svg>") + 6]
        root = ElementTree.fromstring(svg.replace("<svg", '<svg xmlns:xlink="x"', 1))
        assert root.get("aria-label") and root.get("role") == "img"
        assert "<figcaption>" in plot and not re.findall("#[0-9a-f]{6}", svg)
    assert "mupo: 0.5 at step 0, 0.7 at step 4" in plots[0]
    light, dark = text[text.index("<style>") : text.index("</style>")].split("@media", 2)[:2]
    for colour in {*re.findall(r"var\(--([st]\d+)\)", text)}:
        assert f"--{colour}:" in light and f"--{colour}:" in dark


def test_the_collapse_alarm_s_shares_limits_and_words(tmp_path: Path) -> None:
    runs = {
        "<grpo>": write_run(tmp_path / "grpo", {2: 0.75, 4: 0.25}, strategies_share=0.0),
        "mupo": write_run(tmp_path / "mupo", {2: 1.1, 4: 0.9}, diversity_share=0.8),
    }
    (runs["mupo"] / "stopped.json").write_text('{"step": 4, "message": "<why>"}')
    text = write_report(runs, tmp_path / "r.html", "t").read_text()
    heldout = text[text.index('id="heldout"') : text.index('id="settings"')]
    figures = re.findall(r"<figure>.*?</figure>", heldout, re.DOTALL)
    headings = [re.findall("<h3>(.*?)</h3>", shown)[0] for shown in figures]
    # No run has a share of its strategies.
    assert headings == ["acc@1, greedy", "Diversity", "Diversity left"]
    shown = html.unescape(figures[headings.index("Diversity left")])
    assert "<grpo>: 0.75 at step 2, 0.25 at step 4; mupo: 1.1 at step 2, 0.9 at step 4" in shown
    assert "Alarm below 0.5 (<grpo>), 0.8 (mupo)." in shown
    # A grey line for each of the two limits, which no axis, tick or legend is drawn like.
    assert shown.count("stroke: var(--muted); stroke-width: 1.2") == 2
    said = re.findall("<li><b>(.*?)</b>: (.*?)</li>", heldout)
    assert [tuple(map(html.unescape, line)) for line in said] == [
        ("<grpo>", "collapse alarm at step 4: diversity at 0.25 of step 0's, below 0.5"),
        ("mupo", "stopped at step 4: <why>"),
    ]


def test_a_quiet_alarm_says_so_and_one_without_a_start_too(tmp_path: Path) -> None:
    quiet = write_run(tmp_path / "quiet", {2: 0.9}, strategies_share=0.0)
    late = write_run(tmp_path / "late", {2: 0.9})
    rows = (late / "metrics.jsonl").read_text().splitlines(keepends=True)
    (late / "metrics.jsonl").write_text("".join(rows[1:]))
    unknown = write_run(tmp_path / "unknown", {2: 0.1})
    (unknown / "run.json").unlink()
    runs = {"quiet": quiet, "late": late, "unknown": unknown}
    text = write_report(runs, tmp_path / "r.html", "t").read_text()
    assert re.findall("<li><b>(.*?)</b>: (.*?)</li>", text) == [
        ("quiet", "no alarm; both shares stayed above their limits"),
        (
            "late",
            "the collapse alarm is off: step 0 has no diversity of heldout to compare with",
        ),
    ]


def test_cohorts_show_groups_rewards_and_pictures(bare: Path, tmp_path: Path) -> None:
    shown = add_cohorts(bare)
    text = write_report({"mupo": bare}, tmp_path / "r.html", "t").read_text()
    samples = text[text.index('id="samples"') : text.index('id="settings"')]
    assert re.findall("sampled after (\\d+) finished", samples) == ["0", "3"]
    assert samples.count('<article class="cohort">') == 4
    assert samples.count(base64.b64encode(shown).decode()) == 2
    assert samples.count("picture not found") == 2
    assert "how many 6" not in samples
    assert samples.count("Group 1: 2 responses, 1 right, mean reward 0.62") == 4
    assert "answer 7 &middot; reward 1.25 = accuracy 0.90 + diversity 0.35" in samples
    assert "advantage +1.00" in samples and "cut at the token limit" in samples
    assert '<b class="verdict">no answer</b>' in samples


def test_large_pictures_are_shrunk(bare: Path, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (700, 900, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(noise).save(out, "PNG")
    add_cohorts(bare)
    sha = hashlib.sha256(out.getvalue()).hexdigest()
    row = {"problem": "q", "answer": "7", "images": [{"bytes": out.getvalue(), "path": None}]}
    pq.write_table(pa.Table.from_pylist([row]), bare.parent / "train.parquet")
    save_rows(bare / "rollouts" / "step_000000.parquet", cohort(0, sha))
    text = write_report({"mupo": bare}, tmp_path / "r.html", "t").read_text()
    assert len(out.getvalue()) > 1_500_000 > len(text)
    assert "data:image/jpeg" in text


def test_intervals_come_from_the_questions(run: Path, tmp_path: Path) -> None:
    answers = [
        JudgedResponse(
            text="",
            num_tokens=1,
            is_truncated=False,
            accuracy=accuracy,
            format=1.0,
            extracted="7",
            reason="right" if accuracy else "wrong",
        )
        for accuracy in (1.0, 0.0)
    ]
    problems = [
        EvaluatedProblem(
            set_name="heldout",
            prompt_id=str(position),
            position=position,
            question="how many",
            answer="7",
            greedy=answers[0],
            samples=tuple(answers * 2),
        )
        for position in range(2)
    ]
    save_problems(run / "eval" / "heldout" / "step_000004.parquet", problems)
    text = write_report({"mupo": run}, tmp_path / "r.html", "t").read_text()
    # Both questions alike: no spread inside the range, but two right ones say little of a third.
    # pass@2 of 2 right in 4 is 1 - 1/6.
    cells = re.findall(r"<td>([\d.]+)<small>([\d.]+)&ndash;([\d.]+)</small>", text)
    assert ("0.700", "0.012", "1.000") in cells
    assert ("0.250", "0.500", "0.500") in cells
    assert ("0.500", "0.833", "0.833") in cells


def test_settings_show_what_differs(run: Path, tmp_path: Path) -> None:
    other = write_metrics(tmp_path / "grpo", {0: evaluation(0.5, 0.75, 0.4)})
    common = {"run": {"seed": 3}, "loss": {"kl_coef": 0.01}}
    (run / "run.json").write_text(
        json.dumps({"config": common | {"method": {"name": "mupo", "num_groups": 2}}})
    )
    (other / "run.json").write_text(json.dumps({"config": common | {"method": {"name": "grpo"}}}))
    text = write_report({"grpo": other, "mupo": run}, tmp_path / "r.html", "t").read_text()
    settings = text[text.index('id="settings"') :]
    rows = re.findall(r'<th scope="row">(.*?)</th><td>(.*?)</td><td>(.*?)</td>', settings)
    assert rows[:2] == [("method.name", "grpo", "mupo"), ("method.num_groups", "-", "2")]
    assert "loss.kl_coef" not in settings


@pytest.mark.parametrize("rows", [{}, {0: evaluation(0.5, 0.75, 0.4)}, {1: step(1.0, 0.5, 0.5)}])
def test_a_run_that_has_just_begun(rows: dict[int, dict[str, float]], tmp_path: Path) -> None:
    run = write_metrics(tmp_path / "young", rows)
    assert "Final figures" in write_report({"young": run}, tmp_path / "r.html", "t").read_text()
    assert comparison_table({"young": run})


def test_job(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "r.html"
    assert JOB["main"]([str(run), "--out", str(out)]) == 0
    assert "acc@4" in capsys.readouterr().out and out.exists()
    assert JOB["main"]([str(tmp_path / "nope"), "--out", str(out)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and "does not exist" in error and error.count("\n") == 1


def test_runs_are_named_by_what_tells_them_apart(tmp_path: Path) -> None:
    folders = [tmp_path / "a" / "mupo", tmp_path / "b" / "mupo"]
    assert list(JOB["_named"](folders)) == ["a/mupo", "b/mupo"]
    assert list(JOB["_named"]([tmp_path / "a" / "grpo", folders[1]])) == ["grpo", "mupo"]
    with pytest.raises(ConfigError, match="twice"):
        JOB["_named"]([folders[0], tmp_path / "a" / "." / "mupo"])


def test_a_broken_record_is_named(run: Path) -> None:
    (run / "metrics.jsonl").write_text('{"step": 0}\nnonsense\n')
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl:2: "):
        summarise_run(run)
