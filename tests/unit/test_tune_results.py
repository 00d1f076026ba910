"""What a sweep leaves behind and says, and whose turn it is on a cluster."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from cheap_trials import PASS_4, CheapTrainer, Silence, base, cheap_sweep
from rich.console import Console

from mupo_ray.config import Config, load_config
from mupo_ray.errors import PlacementError
from mupo_ray.placement.cluster import describe_cluster
from mupo_ray.placement.plan import plan
from mupo_ray.placement.turn import Turnstile
from mupo_ray.runs.folder import load_resolved
from mupo_ray.train.board import RunTask, SessionBoard
from mupo_ray.tune.report import write_best, write_sweep_report
from mupo_ray.tune.study import START_UP_S, WALL_S, Sweep, open_sweep
from mupo_ray.tune.trials import (
    SweepTable,
    best_trials,
    line_of,
    make_table,
    rows_of,
    short_names,
    start_up_share,
)
from mupo_ray.tune.worker import work


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    """A finished sweep of one objective."""
    sweep = open_sweep(cheap_sweep(trials=6), base(tmp_path_factory.mktemp("one")))
    work(sweep, CheapTrainer(), Silence())
    return sweep


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    """A finished sweep of two objectives that are at odds."""
    objectives = [{"metric": PASS_4}, {"metric": f"1 - {PASS_4}"}]
    sweep = open_sweep(
        cheap_sweep(trials=5, objectives=objectives), base(tmp_path_factory.mktemp("two"))
    )
    work(sweep, CheapTrainer(), Silence())
    return sweep


def test_the_best_configuration_is_a_run_of_its_own(one: Sweep) -> None:
    path = write_best(one)
    assert path is not None
    config = load_config([path])
    best = max(one.trials, key=lambda t: t.value)
    assert best_trials(one)[0].number == best.number
    stored = load_resolved(one.run_dir(best))
    assert config.method == stored.method
    assert config.train == stored.train
    assert config.run_dir == one.folder / "best"


def test_the_page_needs_no_network_and_has_every_plot(one: Sweep, two: Sweep) -> None:
    (one.run_dir(one.trials[1]) / "report.html").write_text("a report")
    text = write_sweep_report(one).read_text()
    for section in ("top", "history", "importance", "parallel", "slices", "trials"):
        assert f'<section id="{section}">' in text
    assert 'href="trials/1/report.html"' in text
    assert "http" not in text.replace("http-equiv", "")
    assert '<section id="front">' not in text

    text = write_sweep_report(two).read_text()
    assert '<section id="front">' in text
    assert "on the front: trials" in text


def test_the_front_begins_with_the_best_in_the_first(two: Sweep) -> None:
    values = [t.values[0] for t in best_trials(two)]
    assert values == sorted(values, reverse=True)
    assert len(values) == 5


def test_a_trial_in_one_line(one: Sweep) -> None:
    row = rows_of(one)[0]
    line = line_of(one, row)
    assert line.startswith(f"trial   0  complete  {PASS_4} 0.8000  method.min_group_size=3 ")
    assert "start-up" in line
    out = io.StringIO()
    with SweepTable(out, lambda sweep, number: None) as table:
        table.show(one)
        table.ended(one, 0)
    assert out.getvalue() == line + "\n"


def test_the_table_fits_a_narrow_terminal(one: Sweep) -> None:
    out = io.StringIO()
    Console(file=out, width=80).print(make_table(one))
    assert "…" not in out.getvalue()
    assert "0.8000" in out.getvalue()


def test_the_share_of_start_up(one: Sweep) -> None:
    share = start_up_share(rows_of(one))
    assert share is not None
    start_up_s = sum(t.user_attrs[START_UP_S] for t in one.trials)
    assert share == pytest.approx(
        (start_up_s, start_up_s / sum(t.user_attrs[WALL_S] for t in one.trials))
    )


def test_names_as_short_as_they_can_be() -> None:
    assert short_names(["train.optimizer.lr", "method.k", "loss.k"]) == {
        "train.optimizer.lr": "optimizer.lr",
        "method.k": "method.k",
        "loss.k": "loss.k",
    }


def test_one_at_a_time_takes_resources() -> None:
    now = [0.0]
    stile = Turnstile(expire_s=60, now=lambda: now[0])
    assert stile.ask("a", "run a") is None
    assert stile.ask("b", "run b") == "run a"
    assert stile.ask("c", "run c") == "run a"
    stile.leave("a")
    assert stile.ask("c", "run c") == "run b", "first come, first served"
    assert stile.ask("b", "run b") is None
    # One that says nothing any more has died; one that keeps asking stays.
    now[0] = 50.0
    assert stile.ask("c", "run c") == "run b"
    now[0] = 61.0
    assert stile.ask("c", "run c") is None
    assert stile.ask("b", "run b") == "run c"


def test_a_cluster_that_others_fill_is_not_one_that_is_too_small() -> None:
    cluster = describe_cluster("1x1cpu-24G")
    small = load_config([], ["placement.check_memory=false"])
    with pytest.raises(PlacementError):
        plan(small, cluster.emptied())
    busy = describe_cluster("1x2cpu-24G")
    full = replace(busy, nodes=tuple(replace(n, cpus=0.0) for n in busy.nodes))
    with pytest.raises(PlacementError):
        plan(small, full)
    assert plan(small, full.emptied()).bundles


def test_the_board_stops_the_open_run_alone() -> None:
    board = SessionBoard()
    assert not board.is_staffed()
    first = board.post(RunTask(config=Config(), config_hash=""))
    board.take()
    assert board.is_staffed()
    board.ask_to_stop(first + 1, "of a run to come")
    assert board.stop_reason() is None
    board.ask_to_stop(first, "pruned")
    assert board.stop_reason() == "pruned"
    board.finish()
    assert board.stop_reason() is None, "the next run goes on"
    assert json.dumps(board.outcome(first)) == "null"


def test_a_folder_without_a_finished_trial_has_no_best(tmp_path: Path) -> None:
    sweep = open_sweep(cheap_sweep(), base(tmp_path))
    assert write_best(sweep) is None
    assert "No trial has succeeded yet" in write_sweep_report(sweep).read_text()
