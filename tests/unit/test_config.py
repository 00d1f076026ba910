"""The configuration tree, its files and its command line."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
import yaml

from mupo_ray.config import Config, load_config, parse_cli
from mupo_ray.errors import ConfigError
from mupo_ray.methods.grpo import GrpoConfig
from mupo_ray.methods.mupo import ExponentialAnnealing, MupoConfig
from mupo_ray.runs.folder import load_resolved, save_resolved
from mupo_ray.settings.text import base_yaml, to_yaml
from mupo_ray.settings.variants import fields

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
RAISING = ["collapse.action=raise_diversity_weight"]


@pytest.fixture
def write(tmp_path):
    def make(text: str, name: str = "a.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return make


def fault(files=(), overrides=()) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(files, overrides)
    return str(caught.value)


def test_every_field_is_described():
    missing = [".".join(path) for path, field in fields(Config) if not field.description]
    assert missing == []


def test_base_yaml_is_the_defaults_and_shows_every_field():
    path = CONFIGS / "base.yaml"
    text = path.read_text()
    assert text == base_yaml(Config), "run tools/write_base_config.py"
    assert load_config([path]) == Config()
    shown = {line.lstrip(" #").partition(":")[0] for line in text.splitlines()}
    assert [path for path, _ in fields(Config) if path[-1] not in shown] == []


@pytest.mark.parametrize(
    "names",
    [
        ["base"],
        ["tiny_cpu"],
        ["qwen2_5_vl_3b"],
        ["qwen2_5_vl_7b"],
        ["qwen2_5_vl_3b", "release_3b"],
        ["qwen2_5_vl_7b", "release_7b"],
        ["tiny_cpu", "grpo"],
        ["tiny_cpu", "dapo"],
        ["qwen2_5_vl_7b", "dapo"],
    ],
    ids="+".join,
)
def test_every_file_loads(names):
    config = load_config([CONFIGS / f"{name}.yaml" for name in names])
    again = Config.model_validate_json(config.model_dump_json())
    assert again == config


def test_every_file_is_tested():
    tested = {"base", "tiny_cpu", "qwen2_5_vl_3b", "qwen2_5_vl_7b", "release_3b", "release_7b"}
    assert {path.stem for path in CONFIGS.glob("*.yaml")} >= tested | {"grpo", "dapo"}


def test_tiny_cpu_is_the_default():
    assert load_config([CONFIGS / "tiny_cpu.yaml"]) == Config()


@pytest.mark.parametrize("size", ["3b", "7b"])
def test_presets_hold_the_papers_settings(size):
    config = load_config([CONFIGS / f"qwen2_5_vl_{size}.yaml"])
    method = config.method
    assert isinstance(method, MupoConfig)
    assert (config.rollout.num_generations, method.num_groups, method.min_group_size) == (15, 3, 3)
    weight = method.diversity_weight
    assert (weight.name, weight.start, weight.end) == ("cosine", 0.4, 0.1)
    assert config.train.optimizer.lr == 1e-6
    assert config.embedder.model == "Qwen/Qwen3-Embedding-0.6B"
    # Two epochs of 38,870 rows at 128 a step: 607.3.
    assert config.train.num_steps == 2 * 38_870 // config.data.prompts_per_step


def test_release_overlays_hold_the_scripts_settings():
    three = load_config([CONFIGS / "qwen2_5_vl_3b.yaml", CONFIGS / "release_3b.yaml"])
    assert isinstance(three.method, MupoConfig)
    assert (three.rollout.num_generations, three.method.num_groups) == (12, 2)
    assert three.method.min_group_size == 4
    assert three.method.diversity_weight == ExponentialAnnealing(start=0.2, decay=7.5e-3)
    seven = load_config([CONFIGS / "qwen2_5_vl_7b.yaml", CONFIGS / "release_7b.yaml"])
    assert seven.method == GrpoConfig()
    assert (seven.rollout.num_generations, seven.loss.kl_coef) == (5, 0.0)
    for config in (three, seven):
        assert config.data.prompts_per_step // config.train.updates_per_step == 128


def test_later_layers_win(write):
    first = write("run: {seed: 1}\ntrain: {num_steps: 5}\n", "a.yaml")
    second = write("run: {seed: 2}\n", "b.yaml")
    config = load_config([first, second], ["run.seed=3", "train.optimizer.lr=5e-5"])
    assert (config.run.seed, config.train.num_steps, config.train.optimizer.lr) == (3, 5, 5e-5)
    assert load_config([first, second]).run.seed == 2
    assert load_config([second, first]).run.seed == 1


@pytest.mark.parametrize("text", ["1e-6", "1.0e-6", "0.000001", "1E-6"])
def test_exponents_are_numbers_in_files_and_overrides(write, text):
    file = write(f"train:\n  optimizer:\n    lr: {text}\n")
    assert load_config([file]).train.optimizer.lr == 1e-6
    assert load_config([], [f"train.optimizer.lr={text}"]).train.optimizer.lr == 1e-6


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("on", "on"),
        ("12:30", "12:30"),
        ("2024-01-01", "2024-01-01"),
        ("'2024'", "2024"),
        ("null", None),
        ("", None),
        ("a=b", "a=b"),
    ],
)
def test_text_stays_text(text, value):
    assert load_config([], [f"data.system_prompt={text}"]).data.system_prompt == value


@pytest.mark.parametrize(
    ("text", "value"), [("010", 10), ("1_000", 1000), ("+7", 7)], ids=["zero", "underscore", "plus"]
)
def test_integers_are_decimal(text, value):
    assert load_config([], [f"train.num_steps={text}"]).train.num_steps == value


def test_another_variant_starts_from_its_own_defaults(write):
    groups = write("method: {num_groups: 3, min_group_size: 3}\n", "groups.yaml")
    grpo = write("method: {name: grpo, advantage: rloo}\n", "grpo.yaml")
    assert load_config([groups]).method == MupoConfig(num_groups=3, min_group_size=3)
    assert load_config([groups, grpo]).method == GrpoConfig(advantage="rloo")
    assert load_config([groups, grpo], ["method.name=mupo"]).method == MupoConfig()
    assert load_config([grpo], ["method.name=grpo"]).method == GrpoConfig(advantage="rloo")
    weight = load_config([], ["method.diversity_weight={name: exponential, decay: 0.5}"])
    assert weight.method == MupoConfig(diversity_weight=ExponentialAnnealing(decay=0.5))


def test_order_of_overrides_does_not_decide_what_a_variant_keeps():
    parts = ["method.advantage=dr_grpo", "method.name=grpo"]
    assert load_config([], parts).method == load_config([], parts[::-1]).method
    assert load_config([], parts).method == GrpoConfig(advantage="dr_grpo")


def test_a_plain_name_replaces_nothing():
    config = load_config([], ["run.seed=4", "run.name=other", "eval.num_prompts=3", "eval.name=x"])
    assert (config.run.seed, config.eval.num_prompts) == (4, 3)


def test_optional_section_turns_on_and_off(write):
    on = write("reward: {overlong: {buffer_tokens: 4}}\n")
    overlong = load_config([on]).reward.overlong
    assert overlong is not None and (overlong.buffer_tokens, overlong.penalty) == (4, 1.0)
    assert load_config([on], ["reward.overlong=null"]).reward.overlong is None


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.num_stepz=3", "unknown key; did you mean train.num_steps?"),
        ("train.lr=1", "unknown key; did you mean train.optimizer.lr?"),
        ("method.advantage=rloo", "unknown key; it belongs to another `name` of method"),
        ("trian.num_steps=1", "unknown key; did you mean train?"),
        ("run.seed=-1", "got -1, should be greater than or equal to 0"),
        ("rollout.num_generations=1.5", "got 1.5, should be a valid integer"),
        ("sync.pause=no", "got 'no', should be 'abort', 'wait' or 'keep'"),
        ("method.name=ppo", "got 'ppo', should be one of 'grpo', 'mupo'"),
        ("run.name=2024", "should be a valid string; put it in quotes: '\"2024\"'"),
        ("run.name=../x", "got '../x', should match pattern"),
        ("train.optimizer.lr=.nan", "got nan, should be a finite number"),
        ("train=3", "got 3, should be a section"),
        ("eval=null", "got null, should be a section"),
        ("train.num_steps", "should read section.field=value"),
        ("train.num_steps=[1", "not YAML"),
    ],
)
def test_a_wrong_override_is_one_clear_line(override, message):
    text = fault([], [override])
    assert "\n" not in text
    assert override in text and message in text


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("train:\n  num_steps: 3\n  num_steps: 4\n", 3, "train.num_steps: given twice, first on"),
        ("a: 1\n", 1, "a: unknown key; should be one of run, model,"),
        ("run:\n  seed: 1\ntrain:\n  num_step: 3\n", 4, "did you mean train.num_steps?"),
        ("train.num_steps: 3\n", 1, "should be nested: train: {num_steps: ...}"),
        ("train:\n  optimizer:\n    betas: [0.9, 1.0]\n", 3, "betas.1: got 1.0, should be less"),
        ("train:\n\tnum_steps: 3\n", 2, "not YAML"),
    ],
)
def test_a_wrong_file_is_named_with_its_line(write, text, line, message):
    path = write(text)
    told = fault([path])
    assert told.startswith(f"{path}:{line}: ") and message in told and "\n" not in told


def test_every_fault_has_its_line(write):
    told = fault([write("train: {num_step: 3}\nrun: {seed: x}\n")], ["loss.kl_coef=-1"])
    assert len(told.splitlines()) == 3


@pytest.mark.parametrize("text", ["- 1\n", "a: &a {b: *a}\n", "run: {seed: 1}\n---\nrun: {}\n"])
def test_other_yaml_is_refused(write, text):
    assert str(write(text)) in fault([write(text)])


def test_a_missing_file_is_named(tmp_path):
    assert "nope.yaml" in fault([tmp_path / "nope.yaml"])


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (["method.num_groups=5"], ["= 15", "num_generations = 12", "lower one"]),
        (["eval.pass_k=[1, 32]"], ["pass_k = [1, 32]", "num_samples = 16"]),
        (["rollout.max_new_tokens=65"], ["= 129", "rollout.max_model_len = 128"]),
        (["train.micro_batch_tokens=95"], ["= 96", "train.micro_batch_tokens = 95"]),
        (["method.diversity_weight.end=0.5"], ["end = 0.5", "start = 0.4"]),
        (
            ["method.reward_form=release", "method.diversity_weight.start=0.95"],
            ["start = 0.95", "accuracy_weight = 0.9"],
        ),
        (["sync.transport=nccl"], ["sync.transport = nccl", "device cuda", "got cpu"]),
        (["train.offload_optimizer=true", "train.zero_stage=2"], ["offload_optimizer", "cuda"]),
        (["run.device=cuda", "sync.transport=nccl"], ["placement.mode split", "got colocated"]),
        (
            ["run.device=cuda", "placement.mode=split", "sync.transport=ipc"],
            ["placement.mode colocated", "got split"],
        ),
        (["run.device=cuda", "rollout.num_engines=2"], ["= 2", "num_workers = 1"]),
        (["train.updates_per_step=17"], ["= 17", "prompts_per_step = 16"]),
        (["filter.accuracy_low=0.99"], ["accuracy_low = 0.99"]),
        (["method.name=grpo", "method.advantage=rloo", "method.min_std=0.1"], ["no effect"]),
        (["reward.overlong.buffer_tokens=33"], ["= 33", "max_new_tokens = 32"]),
        (["reward.accuracy_weight=0", "reward.format_weight=0"], ["both 0"]),
        (["data.min_pixels=9", "data.max_pixels=4"], ["min_pixels = 9", "max_pixels = 4"]),
        (["collapse.action=stop", "eval.path=null"], ["action = stop", "eval.path = None"]),
        (
            ["collapse.action=stop", "eval.num_samples=1", "eval.pass_k=[1]"],
            ["action = stop", "num_samples = 1"],
        ),
        ([*RAISING, "method={name: grpo}"], ["diversity weight", "method.name = grpo"]),
        ([*RAISING, "method={name: pass_k}"], ["diversity weight", "method.name = pass_k"]),
        ([*RAISING, "method.num_groups=1"], ["num_groups = 1", "no diversity reward"]),
        ([*RAISING, "method.diversity_weight={start: 0, end: 0}"], ["start = 0", "above 0"]),
        (
            [*RAISING, "method.reward_form=release", "collapse.max_weight_factor=2.5"],
            ["max_weight_factor = 1", "accuracy_weight = 0.9"],
        ),
    ],
)
def test_rules_across_fields(overrides, parts):
    told = fault([], overrides)
    assert "\n" not in told
    for part in parts:
        assert part in told


@pytest.mark.parametrize(
    "overrides",
    [
        ["method.num_groups=3"],
        ["model.dtype=bfloat16"],
        ["run.device=cuda", "placement.mode=split", "sync.transport=nccl"],
        ["run.device=cuda", "sync.transport=ipc"],
        ["run.device=cuda", "sync.transport=object_store"],
        ["rollout.max_new_tokens=64"],
        ["collapse.action=stop", "method={name: grpo}"],
        RAISING,
        [*RAISING, "method.reward_form=release", "collapse.max_weight_factor=2.25"],
    ],
)
def test_rules_leave_the_limit_itself(overrides):
    load_config([], overrides)


def test_command_line(write):
    parser = argparse.ArgumentParser()
    parser.add_argument("--explain", action="store_true")
    file = write("train: {num_steps: 5}\n")
    argv = ["run.seed=2", "--config", str(file), "--explain", "loss.kl_coef=0"]
    config, args = parse_cli(argv, parser)
    assert (config.run.seed, config.train.num_steps, config.loss.kl_coef) == (2, 5, 0.0)
    assert args.explain
    assert parse_cli([])[0] == Config()


def test_relative_files_resolve_against_the_working_directory(write, monkeypatch):
    monkeypatch.chdir(write("run: {seed: 8}\n").parent)
    assert load_config(["a.yaml"]).run.seed == 8


def test_resolved_config_is_kept_and_read_back(tmp_path):
    config = load_config([], ["method.name=grpo", "run.seed=3"])
    path = save_resolved(config, tmp_path / "run", placement={"mode": "colocated"})
    record = json.loads(path.read_text())
    assert load_resolved(tmp_path / "run") == config
    assert record["seeds"] == {"run": 3}
    assert record["placement"] == {"mode": "colocated"}
    assert record["packages"]["pydantic"].count(".") == 2
    assert [p.name for p in path.parent.iterdir()] == ["run.json"]


def test_a_record_of_another_version_is_refused(tmp_path):
    path = save_resolved(Config(), tmp_path)
    record = json.loads(path.read_text())
    record["config"]["train"]["gone"] = 1
    path.write_text(json.dumps(record))
    with pytest.raises(ConfigError, match=r"run\.json: train\.gone: unknown key"):
        load_resolved(tmp_path)
    path.write_text("{}")
    with pytest.raises(ConfigError, match="should be the record of a run"):
        load_resolved(tmp_path)
    path.unlink()
    with pytest.raises(ConfigError, match="should be the record of a run"):
        load_resolved(tmp_path)


@pytest.mark.parametrize("overrides", [[], ["method.name=grpo", "reward.overlong={penalty: 2}"]])
def test_yaml_text_reads_back(write, overrides):
    config = load_config([], [*overrides, 'data.system_prompt="a: b # c"', "run.name='1e3'"])
    assert load_config([write(to_yaml(config))]) == config
    assert yaml.safe_load(to_yaml(config))["run"]["seed"] == 0
