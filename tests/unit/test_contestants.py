"""How a model is asked: as its run was trained, or as files say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mupo_ray.config import Config, load_config
from mupo_ray.evaluation.contestants import load_model_config


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model within a run that was trained with a template of its own."""
    folder = tmp_path / "run" / "step_000002" / "hf"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    config = load_config(overrides=["data.template=paper", "rollout.max_new_tokens=48"])
    record = {"config": json.loads(config.model_dump_json())}
    (tmp_path / "run" / "run.json").write_text(json.dumps(record))
    return folder


def test_a_runs_model_is_asked_as_it_was_trained(model: Path) -> None:
    config = load_model_config(str(model), (), ["rollout.max_new_tokens=64"])
    assert config.model.path == str(model)
    assert (config.data.template, config.rollout.max_new_tokens) == ("paper", 64)


def test_files_stand_in_place_of_the_run(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("rollout: {max_new_tokens: 32}\n")
    config = load_model_config(str(model), [file], ())
    assert config.model.path == str(model)
    assert config.data.template == Config().data.template != "paper"
    assert config.rollout.max_new_tokens == 32


def test_a_model_without_a_run_is_asked_by_the_defaults() -> None:
    config = load_model_config("Qwen/Qwen2.5-VL-3B-Instruct", (), ())
    assert config.model.path == "Qwen/Qwen2.5-VL-3B-Instruct"
    assert config.data == Config().data
