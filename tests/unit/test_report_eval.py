"""The report on evaluations: maps by hand, what is shown, a page that is safe."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import runpy
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from eval_folders import NUM_SAMPLES, sample, vectors, write_data, write_evaluation
from markupsafe import escape

from mupo_ray.errors import DataError
from mupo_ray.evaluation.measures import measure_evaluation
from mupo_ray.evaluation.results import SamplingSettings, save_results
from mupo_ray.evaluation.samples import EvaluatedProblem, load_problems, save_problems
from mupo_ray.report.cards import Grouping, choose
from mupo_ray.report.eval_page import Shares, write_eval_report
from mupo_ray.report.maps import plane, reach, spread

HOSTILE = (
    '<script>alert("1")</script> & </style><img src="http://example.org/x.png" onerror=x> $a_1$'
)
JOB = runpy.run_path(str(Path(__file__).parents[2] / "jobs" / "report.py"))


class Page(HTMLParser):
    """What a browser would load or run, and the ids of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.handlers: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "srcset", "data", "action"):
                self.targets.append(value or "")
            if name == "id":
                self.ids.append(value or "")
            if name.startswith("on"):
                self.handlers.append(name)


def distances(rows: np.ndarray) -> np.ndarray:
    return np.linalg.norm(rows[:, None] - rows[None], axis=2)


def test_plane_keeps_distances_that_fit_into_it() -> None:
    # Unit vectors of a circle lie in a plane: nothing is lost, whatever their number of columns.
    angles = np.array([0.0, 0.3, 1.1, 2.0])
    circle = np.stack([np.cos(angles), np.sin(angles), 0 * angles, 0 * angles], axis=1)
    found = plane(5.0 * circle)
    assert found.variance_frac == pytest.approx(1.0)
    np.testing.assert_allclose(distances(found.places), distances(circle), atol=1e-9)
    # The chord of 1.1 rad, which is sqrt(2 (1 - cos 1.1)).
    assert distances(found.places)[0, 2] == pytest.approx(2 * np.sin(0.55))


def test_plane_says_how_much_it_shows() -> None:
    # Four orthogonal vectors are a simplex of three equal axes: a plane shows two of them.
    assert plane(np.eye(4)).variance_frac == pytest.approx(2 / 3)
    assert plane(np.eye(3)).variance_frac == pytest.approx(1.0)
    same = plane(np.tile([0.6, 0.8], (5, 1)))
    assert same.variance_frac == 1.0 and np.allclose(same.places, 0.0, atol=1e-6)
    alone = plane(np.array([[1.0, 0.0]]))
    assert alone.places.shape == (1, 2) and reach(alone.places) == 0.0


def test_marks_never_cover_each_other_and_a_lonely_one_stays() -> None:
    crowd = np.zeros((40, 2))
    crowd[0] = (1.0, 0.5)
    places = spread(crowd, reach(crowd))
    assert (distances(places) + 9 * np.eye(40)).min() >= 4.5
    assert ((places > 0) & (places < (100, 72))).all()
    # Reach is 1, so the edge of 7 units is there: 50 + 43, and half of 43 above the middle.
    np.testing.assert_allclose(places[0], (93.0, 36.0 - 21.5))
    np.testing.assert_allclose(spread(crowd, 1.0), places)


def problem(name: str, position: int, num_right: int, spread_: float) -> EvaluatedProblem:
    return EvaluatedProblem(
        set_name="s",
        prompt_id=name,
        position=position,
        question="q",
        answer="7",
        samples=tuple(sample(str(i), is_right=i < num_right) for i in range(4)),
        embeddings=vectors(spread_, 4),
    )


def test_problems_are_chosen_by_the_rules_in_turn() -> None:
    found = choose(
        {
            "x": [problem("a", 0, 2, 0.1), problem("b", 1, 0, 0.0), problem("c", 2, 1, 0.9)],
            "y": [problem("c", 2, 3, 0.9), problem("b", 1, 1, 0.0), problem("d", 3, 4, 0.2)],
        },
        1,
    )
    # c differs most; of the others b has the fewest right; of the rest a is first.
    assert [(why, sorted(answers)) for why, answers in found] == [
        ("most divergent", ["x", "y"]),
        ("fewest right", ["x", "y"]),
        ("first of the set", ["x"]),
    ]
    assert [next(iter(answers.values())).prompt_id for _, answers in found] == ["c", "b", "a"]


def test_without_differences_nothing_counts_as_divergent() -> None:
    found = choose({"x": [problem("a", 0, 1, 0.0), problem("b", 1, 0, 0.0)]}, 1)
    assert [why for why, _ in found] == ["fewest right", "first of the set"]


def test_groups_shrink_to_what_the_samples_allow() -> None:
    grouping = Grouping(num_groups=3, min_group_size=3)
    assert sorted(np.bincount(grouping.of(vectors(0.8))).tolist()) == [3, 3, 3]
    assert np.bincount(grouping.of(vectors(0.8, 7))).tolist() == [4, 3]
    assert grouping.of(vectors(0.8, 2)).tolist() == [0, 0]


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    """Two models, the second without any diversity."""
    data = tmp_path / "data" / "heldout.parquet"
    write_data(data, 4)
    return {
        "mupo": write_evaluation(tmp_path / "mupo", [3, 9, 0, 5], text=HOSTILE, data=data),
        "<b>grpo": write_evaluation(tmp_path / "grpo", [0, 9, 0, 9], spread=0.0, data=data),
    }


def test_page_escapes_text_and_loads_nothing(folders: dict[str, Path], tmp_path: Path) -> None:
    path = write_eval_report(folders, tmp_path / "out" / "r.html", "a <title> & more")
    text = path.read_text()
    assert escape(HOSTILE) in text
    assert HOSTILE not in text and "<b>grpo" not in text and "<title> & more" not in text
    page = Page(text)
    assert not {"link", "iframe", "object", "embed", "base", "form"} & set(page.tags)
    assert page.tags.count("script") == 1 and not page.handlers
    assert page.targets and all(t.startswith(("data:image/", "#")) for t in page.targets)
    assert len(page.ids) == len(set(page.ids))
    assert {t[1:] for t in page.targets if t.startswith("#")} <= set(page.ids)
    assert not re.findall(r"url\((?!#)", text) and "@import" not in text
    assert list(path.parent.iterdir()) == [path]


def test_no_string_of_an_evaluation_is_markup(tmp_path: Path) -> None:
    hostile = replace(sample(HOSTILE, is_right=False), reason=HOSTILE, extracted=HOSTILE)
    asked = replace(
        problem("a", 0, 2, 0.5),
        set_name="<b>set",
        question=HOSTILE,
        answer=HOSTILE,
        category=HOSTILE,
        greedy=hostile,
        samples=(hostile,) * 4,
    )
    folder = tmp_path / "m"
    save_problems(folder / "<b>set" / "samples.parquet", [asked])
    sampling = SamplingSettings(num_samples=4, temperature=1.0, top_p=1.0, max_new_tokens=9, seed=0)
    results = measure_evaluation({"<b>set": [asked]}, model=HOSTILE, created="", sampling=sampling)
    save_results(folder / "results.json", results)
    models = {HOSTILE: folder, "b": folder}
    text = write_eval_report(models, tmp_path / "r.html", HOSTILE).read_text()
    page = Page(text)
    assert HOSTILE not in text and "<b>set" not in text and not page.handlers
    assert page.tags.count("script") == 1 and "img" not in page.tags
    card = text[text.index('id="p0-0"') : text.index("</article>")]
    # Question, gold answer and category; the model in its map's heading and label and in its list;
    # for each model the text of four marks and of two listed responses: the greedy one and four
    # that are alike.
    assert card.count(escape(HOSTILE)) == 3 + 3 + 2 * (4 + 2)
    # Answers are cut to 80 characters. The reason stands at a mark twice, and in the list.
    assert card.count(escape(HOSTILE[:80])) == 18 + 2 * (4 + 2) + 2 * (2 * 4 + 2)


def test_policy_allows_the_page_s_own_script_alone(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    text = write_eval_report(folders, tmp_path / "r.html", "t").read_text()
    script = re.findall("<script>(.*?)</script>", text, re.DOTALL)[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = re.findall('Content-Security-Policy" content="([^"]*)"', text)[0].split("; ")
    assert policy[0] == "default-src 'none'" and f"script-src 'sha256-{digest}'" in policy
    assert text.index("Content-Security-Policy") < text.index("<style>")


def test_responses_stand_by_group_and_equal_ones_once(tmp_path: Path) -> None:
    folder = write_evaluation(tmp_path / "m", [4])
    text = write_eval_report({"m": folder}, tmp_path / "r.html", "t").read_text()
    card = text[text.index('<article class="cohort problem"') :]
    # Samples 0..3 are right; groups are {0, 3, 6}, {1, 4, 7} and {2, 5, 8}.
    heads = re.findall(r"Group (\d): (\d) responses, (\d) right", card)
    assert [number for number, _, _ in heads] == ["1", "2", "3"]
    assert sorted((size, right) for _, size, right in heads) == [("3", "1"), ("3", "1"), ("3", "2")]
    assert card.count("2 times this text") == 3 and "3 times" not in card
    assert "m: 9 samples, 4 right, 6 different" in card and "At temperature 0" in card
    assert card.count('class="pt ') == NUM_SAMPLES
    assert card.count('right" href') == 4


def test_long_texts_are_folded_and_cut_where_they_say_so(tmp_path: Path) -> None:
    # Each text ends with a space and a digit: 600 characters are shown, and 3000 of 5000.
    short = write_evaluation(tmp_path / "short", [0], text="x" * 598)
    text = write_eval_report({"short": short}, tmp_path / "r.html", "t").read_text()
    assert f'<p class="text">{"x" * 598} 0</p>' in text and 'class="long"' not in text
    long = write_evaluation(tmp_path / "long", [0], text="y" * 4998)
    text = write_eval_report({"long": long}, tmp_path / "r.html", "t").read_text()
    item = text[text.index('<li id="p0-0-0-0" class="wrong">') :]
    item = item[: item.index("</li>")]
    assert '<summary class="text">' + "y" * 300 + " ...</summary>" in item
    assert f'<p class="text">{"y" * 3000} ... (2000 characters more)</p>' in item


def test_what_is_not_shown_is_said(tmp_path: Path) -> None:
    folder = write_evaluation(tmp_path / "m", [4] * 5)
    shares = Shares(problems_by_rule=1, listed=2)
    text = write_eval_report({"m": folder}, tmp_path / "r.html", "t", shares=shares).read_text()
    assert "3 of the 5 questions of heldout" in text
    assert text.count("4 more different responses are not shown") == 3
    # The two listed are of different groups; marks of the others lead to the list.
    card = text[text.index('id="p0-0"') : text.index('id="p0-1"')]
    assert len(re.findall(r"Group \d:", card)) == 2 and card.count('href="#p0-0-0"') > 0
    page = Page(text)
    assert {t[1:] for t in page.targets if t.startswith("#")} <= set(page.ids)


def test_pictures_come_from_the_data_file(folders: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    text = write_eval_report(folders, path, "t").read_text()
    # Four problems, and the one that mupo alone solves once more.
    assert text.count("<img ") == 5 and "picture not found" not in text
    write_data(tmp_path / "data" / "heldout.parquet", 2)
    text = write_eval_report(folders, path, "t").read_text()
    assert text.count("<img ") == 3 and text.count("picture not found") == 2


def test_tables_hold_measures_categories_and_gaps(folders: dict[str, Path], tmp_path: Path) -> None:
    text = write_eval_report(folders, tmp_path / "r.html", "t").read_text()
    measures = text[text.index('id="measures"') : text.index('id="categories"')]
    # 17 of 36 samples are right, and 18 of 36.
    row = re.findall(r"acc@1_<wbr>sampled.*?</tr>", measures)[0]
    assert re.findall(r"<td>([\d.]+)<small>", row) == ["0.472", "0.500"]
    assert "<b>pass@16</b> of mupo, &lt;b&gt;grpo: needs 16 samples" in measures
    assert re.findall(r"no answer</th><td>(\d+)<small>([\d.]+%)", measures) == [("19", "52.8%")]
    categories = text[text.index('id="categories"') : text.index('id="problems"')]
    greedy = categories[: categories.index("</table>")]
    # mupo is greedily right on 1 and 3, both of `even`; macro and micro are 1/2.
    assert re.findall(r"<td>([\d.]+)", greedy) == [
        *("1.000", "1.000", "0.000", "0.000"),
        *("0.500", "0.500", "0.500", "0.500"),
    ]


def test_models_are_compared_with_the_first(folders: dict[str, Path], tmp_path: Path) -> None:
    text = write_eval_report(folders, tmp_path / "r.html", "t").read_text()
    found = text[text.index('id="comparison"') : text.index('id="problems"')]
    assert "<h3>&lt;b&gt;grpo against mupo, heldout (4 questions)</h3>" in found
    # Greedy answers are right where more than four samples are: on 1 and 3 in both.
    assert "both right on 2, only mupo on 0, only &lt;b&gt;grpo on 0, neither on 2" in found
    row = re.findall(r"pass@1</th><td>([\d.]+)</td><td>([\d.]+)</td><td>([-+\d.]+)", found)
    assert row == [("0.472", "0.500", "+0.028")]
    # Question 1 has three right samples of mupo, none of grpo.
    assert "&lt;b&gt;grpo solves 0 questions that mupo never does; mupo solves 1" in found
    assert "mupo solves it in 3 of 9 samples, &lt;b&gt;grpo in none of 9" in found
    assert found.count('<article class="cohort problem"') == 1
    assert len(re.findall('<details id="c0-0-0-[01]" open>', found)) == 2


def test_curves_say_their_values(folders: dict[str, Path], tmp_path: Path) -> None:
    text = write_eval_report(folders, tmp_path / "r.html", "t").read_text()
    curves = text[text.index('id="curves"') : text.index('id="measures"')]
    assert re.findall("<h3>(.*?)</h3>", curves) == [
        *("heldout", "pass@k", "Majority vote of k", "Diversity, and what it gives"),
    ]
    # Three of four problems have a right sample among nine.
    assert "mupo: 0.472 at k = 1" in curves and "0.750 at k = 9" in curves


def test_job_takes_runs_and_evaluations(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mupo, grpo = folders.values()
    out = tmp_path / "r.html"
    assert JOB["main"]([str(mupo), str(grpo), "--out", str(out)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].split() == ["heldout", "mupo", "grpo"]
    row = next(line for line in said if line.startswith("acc@1_sampled"))
    assert re.findall(r"([\d.]+) \[", row) == ["0.472", "0.500"]
    assert "<title>Evaluation report</title>" in out.read_text()
    run = tmp_path / "run"
    run.mkdir()
    (run / "metrics.jsonl").write_text(json.dumps({"step": 1, "time/step_s": 2.0}) + "\n")
    assert JOB["main"]([str(mupo), str(run), "--out", str(out)]) == 0
    text, page = out.read_text(), Page(out.read_text())
    assert re.findall('<section id="(.*?)">', text) == [
        *("figures", "time", "settings", "curves", "measures", "categories", "problems"),
        "evaluations",
    ]
    assert len(page.ids) == len(set(page.ids))
    # The run has the first colour and the evaluation the second, in legend and plots alike.
    legend = text[text.index('class="legend"') : text.index("<main>")]
    assert re.findall(r"var\(--(s\d)\).*?</svg>(.*?)</li>", legend) == [
        ("s0", "run"),
        ("s1", "mupo"),
    ]
    assert "var(--s1)" in text[text.index('id="curves"') : text.index('id="measures"')]


def test_a_folder_without_samples_is_named(folders: dict[str, Path], tmp_path: Path) -> None:
    path = folders["mupo"] / "heldout" / "samples.parquet"
    path.unlink()
    with pytest.raises(DataError, match=re.escape(str(path))):
        write_eval_report(folders, tmp_path / "r.html", "t")
    with pytest.raises(ValueError, match="empty"):
        write_eval_report({}, tmp_path / "r.html", "t")


def test_what_was_not_asked_for_is_not_drawn(tmp_path: Path) -> None:
    bare = [
        replace(problem(name, i, 2, 0.5), set_name="s", embeddings=None, category=None)
        for i, name in enumerate("ab")
    ]
    greedy_only = replace(
        problem("c", 0, 0, 0.5),
        samples=(),
        embeddings=None,
        greedy=sample("x", is_right=True),
    )
    sets = {"s": bare, "greedy only": [greedy_only]}
    for name, problems in sets.items():
        save_problems(tmp_path / "m" / name / "samples.parquet", problems)
    sampling = SamplingSettings(num_samples=4, temperature=1.0, top_p=1.0, max_new_tokens=9, seed=0)
    results = measure_evaluation(sets, model="m", created="", sampling=sampling)
    save_results(tmp_path / "m" / "results.json", results)
    text = write_eval_report({"m": tmp_path / "m"}, tmp_path / "r.html", "t").read_text()
    assert 'class="map"' not in text and 'id="categories"' not in text
    assert "<h5>Samples</h5>" in text and "2 of the 2 questions of s" in text
    assert "0 of the 1 questions of greedy only" in text
    assert "<h3>All sets</h3>" in text and "no problem has embeddings" in text


def test_models_embedded_at_different_widths_share_no_map(tmp_path: Path) -> None:
    folders = {n: write_evaluation(tmp_path / n, [4]) for n in "ab"}
    path = folders["b"] / "heldout" / "samples.parquet"
    wider = [replace(p, embeddings=np.eye(9, dtype=np.float32)) for p in load_problems(path)]
    save_problems(path, wider)
    text = write_eval_report(folders, tmp_path / "r.html", "t").read_text()
    assert 'class="map"' not in text and "embedded at different widths" in text
