"""Whole runs through the real stack: what they record, and that they end as they should."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
import ray
import torch
from transformers import AutoModelForImageTextToText, AutoProcessor

from mupo_ray.config import Config
from mupo_ray.data.render import PromptRenderer
from mupo_ray.data.stream import PromptOrder, load_prompts
from mupo_ray.errors import CheckpointError, ConfigError, EmbeddingError, TrainingError
from mupo_ray.files import read_jsonl
from mupo_ray.rollout.embedder import TextEmbedder
from mupo_ray.rollout.services import Services
from mupo_ray.runs.folder import early_stop
from mupo_ray.runs.ledger import LedgerEntry, read_ledger
from mupo_ray.settings.sections import EmbedderConfig
from mupo_ray.train.board import RunTask, SessionBoard
from mupo_ray.train.launch import run_training
from mupo_ray.train.session import Session, open_session

MakeConfig = Callable[..., Config]

STEPS = 4
PROMPTS = 4
RESPONSES = 6

# A random model is never right; penalised lengths give its responses rewards that differ, and the
# rate is high, so that a step on other weights or without optimiser state would show.
LEARNING = (
    f"train.num_steps={STEPS}",
    "rollout.max_new_tokens=32",
    "reward.overlong={buffer_tokens: 31, penalty: 1.0}",
    "train.optimizer={lr: 1e-3, warmup_steps: 0}",
)
# What the clock, the machine, or a cache that runs share decides.
_MAY_DIFFER = (
    "time/",
    "rollout/",
    "embed/cache_hit_frac",
    "sync/send_s",
    "sync/commit_s",
    "sync/logprob_diff",
)


def metrics(run_dir: Path) -> list[dict[str, Any]]:
    return read_jsonl(run_dir / "metrics.jsonl")


def assert_same_course(run_dir: Path, other: Path, steps: int | None = None) -> None:
    """Same prompts trained on and same metrics, up to floating-point noise."""
    assert prompt_ids(run_dir)[:steps] == prompt_ids(other)[:steps]
    limit = None if steps is None else steps + 1
    for mine, theirs in zip(metrics(run_dir)[:limit], metrics(other)[:limit], strict=True):
        keys, others = (
            {key for key in row if not key.startswith(_MAY_DIFFER)} for row in (mine, theirs)
        )
        assert keys == others
        for key in keys:
            assert mine[key] == pytest.approx(theirs[key], rel=1e-5, abs=1e-5), (
                f"step {mine['step']}: {key}"
            )


def prompt_ids(run_dir: Path) -> list[list[str]]:
    entries = read_ledger(run_dir / "ledger")
    assert [entry.step for entry in entries] == list(range(len(entries)))
    return [entry.prompt_ids for entry in entries]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = AutoModelForImageTextToText.from_pretrained(
        folder
    ).state_dict()
    return state


@pytest.fixture(scope="module")
def whole(session: Session, make_config: MakeConfig) -> Path:
    """A run of four steps without any break."""
    return run_training(make_config("whole", *LEARNING), session=session)


def test_every_step_is_logged_once(whole: Path) -> None:
    rows = metrics(whole)
    assert [row["step"] for row in rows] == list(range(STEPS + 1))
    for row in rows[1:]:
        assert row["sync/logprob_diff_max"] <= 1e-4
        assert row["optim/grad_norm"] > 0
        assert row["group/size/min"] == row["group/size/max"] == 3
        assert row["data/position"] == PROMPTS * row["step"]
        assert row["time/step_s"] > 0
    evaluated = [row["step"] for row in rows if row.get("eval/heldout/questions") == 2]
    assert evaluated == [0, 2, 4]
    assert all(f"eval/heldout/pass@{k}" in rows[0] for k in (1, 2, 4))


def test_prompts_are_those_of_the_order(whole: Path, puzzles: dict[str, Path]) -> None:
    model = json.loads((whole / "run.json").read_text())["config"]["model"]["path"]
    rendered = load_prompts(
        puzzles["train"], PromptRenderer.from_pretrained(model, max_prompt_tokens=64)
    )
    order = PromptOrder(num_rows=len(rendered), seed=0)
    expected = [
        LedgerEntry(
            step=step,
            policy_version=step,
            positions=positions,
            prompt_ids=[rendered[row].prompt_id for row in order.rows(positions)],
        )
        for step in range(STEPS)
        for positions in [list(range(PROMPTS * step, PROMPTS * (step + 1)))]
    ]
    assert read_ledger(whole / "ledger") == expected


def test_every_response_can_be_traced(whole: Path) -> None:
    for step, ids in enumerate(prompt_ids(whole)):
        rows = pq.read_table(whole / "rollouts" / f"step_{step:06d}.parquet").to_pylist()
        assert [row["prompt_id"] for row in rows] == [i for i in ids for _ in range(RESPONSES)]
        assert {row["policy_version"] for row in rows} == {step}
        assert {row["engine"] for row in rows} == {0}
        assert len({row["seed"] for row in rows}) == len(rows)
        for row in rows:
            assert len(row["completion_ids"]) == len(row["sampler_logprobs"]) > 0
            assert row["reward"] == pytest.approx(sum(row["reward_parts"].values()))
            assert set(row["reward_parts"]) == {"accuracy", "format", "diversity", "overlong"}
            assert len(row["image_sha256"]) == 1
            assert len(row["embedding"]) == 384
        for first in range(0, len(rows), RESPONSES):
            groups = [row["group_id"] for row in rows[first : first + RESPONSES]]
            assert sorted(groups.count(g) for g in set(groups)) == [3, 3]


def test_checkpoints_hold_a_plain_model(whole: Path, tiny_model: Path) -> None:
    assert sorted(p.name for p in whole.glob("step_*")) == ["step_000002", "step_000004"]
    before, middle, last = (
        weights(folder)
        for folder in (tiny_model, whole / "step_000002" / "hf", whole / "step_000004" / "hf")
    )
    assert before.keys() == middle.keys() == last.keys()
    for name in ("model.language_model.norm.weight", "model.visual.blocks.0.norm1.weight"):
        assert not torch.equal(before[name], middle[name])
        assert not torch.equal(middle[name], last[name])
    AutoProcessor.from_pretrained(whole / "step_000004" / "hf")


def test_a_resumed_run_equals_an_unbroken_one(
    whole: Path, session: Session, make_config: MakeConfig
) -> None:
    config = make_config("resumed", *LEARNING)
    run_training(config, session=session, stop_after_step=2)
    assert [row["step"] for row in metrics(config.run_dir)] == [0, 1, 2]
    run_training(config, session=session)
    assert_same_course(config.run_dir, whole)
    for mine, other in zip(
        weights(config.run_dir / "step_000004" / "hf").values(),
        weights(whole / "step_000004" / "hf").values(),
        strict=True,
    ):
        assert torch.allclose(mine, other, atol=1e-5)


@pytest.mark.parametrize("is_alone", [False, True], ids=["session", "alone"])
def test_a_killed_worker_is_restarted_and_no_step_counts_twice(
    whole: Path, session: Session, make_config: MakeConfig, is_alone: bool
) -> None:
    config = make_config(f"killed_{is_alone}", *LEARNING)
    killed: list[int] = []
    spared = train_workers() if is_alone else []
    # Alone in the midst of a step; in a session as soon as a checkpoint is whole, when a record
    # that was written after it would be lost for ever.
    moment = partial(has_line, config.run_dir, 3) if is_alone else partial(has_saved, config, 2)
    killer = threading.Thread(target=kill_worker_at, args=(moment, spared, killed), daemon=True)
    killer.start()
    run_training(config, session=None if is_alone else session)
    killer.join(timeout=10)
    assert len(killed) == 1
    assert [row["step"] for row in metrics(config.run_dir)] == list(range(STEPS + 1))
    assert_same_course(config.run_dir, whole)


def has_line(run_dir: Path, step: int) -> bool:
    return any(row["step"] >= step for row in metrics(run_dir))


def has_saved(config: Config, step: int) -> bool:
    return (config.run_dir / f"step_{step:06d}" / "state.json").exists()


def kill_worker_at(moment: Callable[[], bool], spared: list[int], killed: list[int]) -> None:
    """Kill the train worker as soon as the moment has come."""
    deadline = time.monotonic() + 300
    workers: set[int] = set()
    while time.monotonic() < deadline and not moment():
        # Looking for them takes longer than what the moment may be followed by.
        workers = workers or set(train_workers()) - set(spared)
        time.sleep(0.001)
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
        killed.append(pid)


def train_workers() -> list[int]:
    """Processes of Ray Train below this one: other clusters may run on the machine."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # It may end while it is looked at.
            if "RayTrainWorker" in " ".join(process.cmdline()):
                found.append(process.pid)
    return found


def test_two_sharded_workers_do_what_one_does(
    whole: Path, services: Services, make_config: MakeConfig
) -> None:
    two = make_config(
        "two", *LEARNING, "train.num_workers=2", "train.zero_stage=2", "train.cpus_per_worker=1"
    )
    with open_session(two, services) as session:
        run_training(two, session=session, stop_after_step=2)
    assert_same_course(two.run_dir, whole, steps=1)
    assert prompt_ids(two.run_dir) == prompt_ids(whole)[:2]
    assert metrics(two.run_dir)[2]["sync/logprob_diff_max"] <= 1e-4


def test_a_collapse_alarm_stops_the_run_until_it_is_told_to_go_on(
    whole: Path, session: Session, make_config: MakeConfig
) -> None:
    # Half-way between checkpoints; no run has a hundred times the diversity it began with.
    settings = (*LEARNING, "checkpoint.every_steps=4", "collapse.diversity_share=100")
    config = make_config("stopped", *settings, "collapse.action=stop")
    for attempt in ("stops", "is stopped still"):
        run_training(config, session=session)
        assert [row["step"] for row in metrics(config.run_dir)] == [0, 1, 2], attempt
        told = early_stop(config.run_dir)
        assert told is not None
        assert re.match(
            r"stopped at step 2: collapse alarm: diversity at [\d.]+ of step 0's, below 100", told
        )
    base, first, last = metrics(config.run_dir)
    assert last["collapse/alarm"] == 1
    key = "eval/heldout/diversity"
    assert last["collapse/diversity_ratio"] == pytest.approx(last[key] / base[key])
    assert not any(name.startswith("collapse/") for name in {**base, **first})

    run_training(make_config("stopped", *settings), session=session)
    assert early_stop(config.run_dir) is None
    assert prompt_ids(config.run_dir) == prompt_ids(whole)
    for mine, other in zip(metrics(config.run_dir), metrics(whole), strict=True):
        assert mine.get("loss/total") == pytest.approx(other.get("loss/total"), abs=1e-5)


def test_a_raised_diversity_weight_outlives_a_break(
    session: Session, make_config: MakeConfig
) -> None:
    settings = (
        *LEARNING,
        "train.num_steps=3",
        "eval.every_steps=1",
        "collapse={action: raise_diversity_weight, diversity_share: 100}",
    )
    unbroken = make_config("raised", *settings)
    run_training(unbroken, session=session)
    # Cosine from 0.4 to 0.1 over 3 steps, doubled after each evaluation and at most fourfold.
    rows = metrics(unbroken.run_dir)[1:]
    weights_of_diversity = [row["reward/diversity_weight"] for row in rows]
    assert weights_of_diversity == pytest.approx([0.4, 2 * 0.325, 4 * 0.175])
    assert [row["collapse/weight_factor"] for row in rows] == [2, 4, 4]

    config = make_config("raised_broken", *settings)
    run_training(config, session=session, stop_after_step=2)
    run_training(config, session=session)
    assert_same_course(config.run_dir, unbroken.run_dir)


def test_another_configuration_under_the_same_name_is_refused(
    whole: Path, session: Session, make_config: MakeConfig
) -> None:
    before = metrics(whole)
    other = make_config("whole", *LEARNING, "rollout.num_generations=8")
    with pytest.raises(CheckpointError, match=r"rollout\.num_generations: 6 then, 8 now"):
        run_training(other, session=session)
    assert metrics(whole) == before


def test_a_loss_that_is_not_finite_ends_the_run_once(
    session: Session, make_config: MakeConfig
) -> None:
    config = make_config("nan", *LEARNING, "train.optimizer={lr: 1e30, warmup_steps: 0}")
    with pytest.raises(TrainingError, match="loss of optimizer step 1 is nan"):
        run_training(config, session=session)
    record = json.loads((config.run_dir / "failure.json").read_text())
    assert record["type"] == "TrainingError"
    assert "is nan" in record["message"]
    assert [row["step"] for row in metrics(config.run_dir)] == [0, 1]


@pytest.fixture
def without_embedder(session: Session) -> Iterator[Session]:
    """The shared session, beside an embedder that never comes up."""
    gone = (
        ray.remote(TextEmbedder)
        .options(num_cpus=0.1)
        .remote(EmbedderConfig(model="/no/such/model"), "cpu")
    )
    whole = session.services
    session.use(replace(whole, embedders=(gone,)))
    yield session
    session.use(whole)


def test_a_failed_embedding_falls_back_and_a_broken_row_is_skipped(
    without_embedder: Session,
    make_config: MakeConfig,
    puzzles: dict[str, Path],
    tmp_path: Path,
) -> None:
    table = pq.read_table(puzzles["train"])
    rows = table.to_pylist()
    broken = PromptOrder(num_rows=len(rows), seed=0).rows([1])[0]
    rows[broken]["images"][0]["bytes"] = b"not a picture"
    file = tmp_path / "train.parquet"
    pq.write_table(type(table).from_pylist(rows, schema=table.schema), file)
    config = make_config("fallback", f"data.train={file}", "embedder.on_failure=one_group")

    run_training(config, session=without_embedder)

    base, first, second = metrics(config.run_dir)
    assert first["data/dropped"] == second["data/dropped"] == 1
    assert [e.positions for e in read_ledger(config.run_dir / "ledger")] == [
        [0, 2, 3],
        [4, 5, 6, 7],
    ]
    assert first["embed/fallbacks"] == 3
    assert second["embed/fallbacks"] == 4
    assert first["group/size/min"] == RESPONSES
    assert "diversity/pairwise" not in first
    assert "eval/heldout/diversity" not in base
    assert base["eval/heldout/questions"] == 2


def test_a_failed_embedding_stops_the_run_by_default(
    without_embedder: Session, make_config: MakeConfig
) -> None:
    config = make_config("no_embedding", "train.max_failures=0", "eval.path=null")
    with pytest.raises(EmbeddingError, match=r"embedder actor 0 failed.*no/such/model"):
        run_training(config, session=without_embedder)
    assert metrics(config.run_dir) == []


def test_a_step_without_signal_is_skipped(session: Session, make_config: MakeConfig) -> None:
    # A random model is wrong every time.
    config = make_config(
        "filtered", "method={name: grpo}", "filter={enabled: true, max_rounds: 2}", "eval.path=null"
    )
    run_training(config, session=session)
    rows = metrics(config.run_dir)
    assert [row["step"] for row in rows] == [1, 2]
    for row in rows:
        assert row["optim/skipped"] == 1
        assert row["filter/rounds"] == 2
        assert row["filter/dropped_wrong"] == 2 * PROMPTS
        assert row["filter/kept_frac"] == 0
        assert row["data/position"] == 2 * PROMPTS * row["step"]
    assert prompt_ids(config.run_dir) == [[], []]


def test_a_run_that_does_not_fit_the_session_is_refused(
    session: Session, make_config: MakeConfig
) -> None:
    with pytest.raises(ConfigError, match=r"train\.num_workers = 2, this session's workers .* 1"):
        run_training(make_config("wide", "train.num_workers=2"), session=session)
    with pytest.raises(ConfigError, match="open a session of its own"):
        run_training(make_config("other", "rollout.max_num_seqs=8"), session=session)


class NobodyComes(Session):
    """A session whose train workers wait for resources for ever."""

    def _fit(self) -> None:
        time.sleep(60)


def test_workers_that_do_not_come_are_waited_for_so_long(
    ray_local: None, make_config: MakeConfig
) -> None:
    config = make_config("nobody", "rollout.start_timeout_s=1")
    board = ray.remote(SessionBoard).options(num_cpus=0).remote()
    idle = NobodyComes(config, board, None)
    message = r"1 train workers did not start within rollout\.start_timeout_s = 1 s"
    with pytest.raises(TrainingError, match=message):
        idle.train(RunTask(config=config, config_hash=""))
    with pytest.raises(TrainingError, match=message):
        idle.wait_until_up()
    ray.kill(board)
    with pytest.raises(TrainingError, match="the session's board is gone"):
        idle.train(RunTask(config=config, config_hash=""))


def test_a_reward_of_ones_own_counts(session: Session, make_config: MakeConfig) -> None:
    config = make_config(
        "own_reward",
        'reward.extra=[{name: brevity, path: "own_rewards:brevity", weight: 0.5}]',
        "train.num_steps=1",
        "eval.path=null",
    )
    run_training(config, session=session)
    rows = pq.read_table(config.run_dir / "rollouts" / "step_000000.parquet").to_pylist()
    expected = [0.5 / len(row["completion_ids"]) for row in rows]
    assert [row["reward_parts"]["brevity"] for row in rows] == pytest.approx(expected)
    (step,) = metrics(config.run_dir)
    assert step["reward/extra/brevity/mean"] == pytest.approx(sum(expected) / len(expected))
