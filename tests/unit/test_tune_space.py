"""Sweep files, expressions and search spaces: what is sampled, and what is refused at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import optuna
import pytest
from cheap_trials import base, cheap_sweep

from mupo_ray.config import load_config
from mupo_ray.errors import ConfigError
from mupo_ray.tune.expression import parse_expression, parse_objectives, value_in
from mupo_ray.tune.space import SearchSpace
from mupo_ray.tune.spec import Objective, SweepConfig, read_sweep

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.mark.parametrize(
    ("text", "names", "expected"),
    [
        ("rollout.num_generations // method.min_group_size", 2, 4),
        ("min(3, rollout.num_generations // method.min_group_size) + 1", 2, 4),
        ("eval/held-out/pass@4 - 0.5 * eval/held-out/acc@1", 2, 0.5),
        ("(eval/held-out/pass@4 - eval/held-out/acc@1) / eval/held-out/pass@4", 2, 0.5),
        ("method.name == 'mupo' and not 1 < method.min_group_size <= 3", 2, False),
        ("-2.5 % 2 if method.name != 'mupo' else log(exp(2.0))", 1, 2.0),
    ],
)
def test_expressions(text: str, names: int, expected: Any) -> None:
    values = {
        "rollout.num_generations": 12,
        "method.min_group_size": 3,
        "method.name": "mupo",
        "eval/held-out/pass@4": 0.75,
        "eval/held-out/acc@1": 0.5,
    }
    if "/ eval" in text:
        values["eval/held-out/acc@1"] = 0.375
    parsed = parse_expression(text)
    assert len(parsed.names) == names
    assert parsed.value(values) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("__import__('os').system('true')", "is not allowed"),
        ("a.b()", r"'a\.b\(\)' is not allowed"),
        ("[1][0]", "is not allowed"),
        ("1 + 2 ** 9", r"'2 \*\* 9' is not allowed"),
        ("1 is 1", "is not allowed"),
        ("b'a'", "is not allowed"),
        ("min(a, key=b)", "is not allowed"),
        ("min(*a)", r"'\*a' is not allowed"),
        ("(1).real", "is not allowed"),
        ("(lambda: 1)()", "is not allowed"),
        ("f'{a}'", "is not allowed"),
        ("a +", "invalid syntax"),
        ("", "invalid syntax"),
        ("1 + " * 200 + "1", "801 characters long"),
    ],
)
def test_what_is_no_expression(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_expression(text)


def test_an_expression_without_a_value_says_so() -> None:
    with pytest.raises(ConfigError, match=r"'1 / train\.k' has no value with train\.k = 0"):
        parse_expression("1 / train.k").value({"train.k": 0})


def test_an_impossible_point_is_never_sampled() -> None:
    config = load_config([CONFIGS / "tiny_cpu.yaml"])
    space = SearchSpace(read_sweep(CONFIGS / "sweep.yaml").search, config)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    seen = set()
    for _ in range(300):
        chosen = space.sample(study.ask())
        seen.add((chosen["method.num_groups"], chosen["method.min_group_size"]))
        space.config(chosen)
    # N = 12: four groups of 4 do not fit, all else does.
    assert seen == {(k, m) for k in (1, 2, 3, 4) for m in (2, 3, 4)} - {(4, 4)}


def test_a_range_follows_what_is_sampled_before_it(tmp_path: Path) -> None:
    search = {
        "method.num_groups": {
            "type": "int",
            "low": 1,
            "high": "rollout.num_generations // method.min_group_size",
        },
        "rollout.num_generations": {"type": "int", "low": 6, "high": 12, "step": 3},
    }
    space = SearchSpace(cheap_sweep(search=search).search, base(tmp_path))
    assert space.paths == ("rollout.num_generations", "method.num_groups")
    points = [tuple(p.values()) for p in space.grid()]
    assert points == [(n, k) for n in (6, 9, 12) for k in range(1, n // 3 + 1)]


def test_a_condition_leaves_a_path_out(tmp_path: Path) -> None:
    search = {
        "method.name": {"type": "categorical", "choices": ["mupo", "grpo"]},
        "method.num_groups": {"type": "int", "low": 2, "high": 3, "when": "method.name == 'mupo'"},
        "method.advantage": {
            "type": "categorical",
            "choices": ["grpo", "rloo"],
            "when": "method.name == 'grpo'",
        },
    }
    space = SearchSpace(cheap_sweep(search=search).search, base(tmp_path))
    points = space.grid()
    assert points == [
        {"method.name": "mupo", "method.num_groups": 2},
        {"method.name": "mupo", "method.num_groups": 3},
        {"method.name": "grpo", "method.advantage": "grpo"},
        {"method.name": "grpo", "method.advantage": "rloo"},
    ]
    assert space.config(points[3]).method.model_dump()["advantage"] == "rloo"


LR = {"type": "float", "low": 1e-5, "high": 1e-3}


@pytest.mark.parametrize(
    ("search", "said"),
    [
        (
            {"method.num_group": LR},
            r"method\.num_group: no such field; did you mean method\.num_groups\?",
        ),
        ({"optimizer.lr": LR}, r"did you mean train\.optimizer\.lr\?"),
        (
            {"method.k": LR},
            r"method\.k: no such field while method\.name is mupo; it belongs to another",
        ),
        ({"train.optimizer": LR}, r"train\.optimizer: is a section"),
        (
            {"train.optimizer.lr": LR | {"low": 0.0}},
            r"low = 0\.0 is outside the field's own limits: it should be greater",
        ),
        ({"loss.clip_low": LR | {"high": 1.0}}, r"high = 1\.0 is outside .* should be less than 1"),
        (
            {"method.min_group_size": {"type": "int", "low": 1, "high": 3}},
            r"low = 1 is outside .* greater than or equal to 2",
        ),
        (
            {"train.num_steps": LR | {"low": 0.5}},
            r"low = 0\.5 is outside .* should be a valid integer",
        ),
        (
            {"method.name": {"type": "categorical", "choices": ["mupo", "gspo"]}},
            r'choices has "gspo", which is outside',
        ),
        (
            {"train.optimizer.lr": LR | {"low": 1.0}},
            r"low = 1\.0 exceeds high = 0\.001; should be at most it",
        ),
        (
            {"train.optimizer.weight_decay": LR | {"low": 0.0, "log": True}},
            r"low = 0\.0 has no logarithm",
        ),
        (
            {"method.num_groups": {"type": "int", "low": 1, "high": "rollout.n"}},
            r"the expression's rollout\.n is no value",
        ),
        (
            {"method.num_groups": {"type": "int", "low": 1, "high": "rollout.num_generations / 5"}},
            r"high is 2\.4; should be whole",
        ),
        (
            {"method.num_groups": {"type": "int", "low": 1, "high": "2 +"}},
            r"method\.num_groups: high: expression '2 \+': invalid syntax",
        ),
        (
            {
                "method.num_groups": {"type": "int", "low": 1, "high": "train.num_steps"},
                "train.num_steps": {"type": "int", "low": 1, "high": "method.num_groups"},
            },
            r"ranges depend on each other: method\.num_groups, train\.num_steps",
        ),
        (
            {"method.num_groups": {"type": "int", "low": 1, "high": 8}},
            r"refuses a point that may be sampled, method\.num_groups = \d: .* exceeds rollout\.",
        ),
    ],
)
def test_a_search_that_cannot_be(tmp_path: Path, search: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        SearchSpace(cheap_sweep(search=search).search, base(tmp_path))


def test_the_baseline_lies_in_its_ranges(tmp_path: Path) -> None:
    search = cheap_sweep(
        search={"train.optimizer.lr": {"type": "float", "low": 1e-3, "high": 1e-2}}
    )
    with pytest.raises(
        ConfigError, match=r"own value 0\.0002 is not in its range \(0\.001 to 0\.01\); widen it"
    ):
        SearchSpace(search.search, base(tmp_path), baseline=True)
    SearchSpace(search.search, base(tmp_path))


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        ("eval/heldout/pass@5", r"eval\.pass_k is \[1, 2, 4, 8\]; should hold 5"),
        ("eval/hold/pass@4", r"did you mean eval/heldout/pass@4\?"),
        ("eval/heldout/accuracy", "is not declared"),
        ("1 + 1", "names no metric"),
    ],
)
def test_objectives_that_no_run_has(tmp_path: Path, metric: str, said: str) -> None:
    with pytest.raises(ConfigError, match=rf"objectives\.0\.metric: .*{said}"):
        parse_objectives([Objective(metric=metric)], base(tmp_path))
    silent = load_config([], ["eval.path=null"], base=base(tmp_path))
    with pytest.raises(ConfigError, match="needs evaluations"):
        parse_objectives([Objective(metric="eval/heldout/pass@4")], silent)


def test_the_value_of_an_objective_in_a_line(tmp_path: Path) -> None:
    (objective,) = parse_objectives(
        [Objective(metric="eval/heldout/pass@4 - 2 * loss/kl")], base(tmp_path)
    )
    assert value_in(objective, {"eval/heldout/pass@4": 0.75, "loss/kl": 0.25}) == 0.25
    assert value_in(objective, {"loss/kl": 0.25}) is None
    assert value_in(objective, {"eval/heldout/pass@4": 0.75, "loss/kl": None}) != 0  # NaN


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("trails: 3", r"s\.yaml:1: trails: unknown key; did you mean trials\?"),
        ("trials: 0", r"s\.yaml:1: trials: got 0, should be greater than or equal to 1"),
        ("name: a", "search: missing"),
        (
            "search: {a.b: {type: int, low: 1, hihg: 2}}",
            r"s\.yaml:1: search\.a\.b\.hihg: unknown key; did you mean high\?",
        ),
        (
            "search: {a.b: {type: integer, low: 1, high: 2}}",
            r'search\.a\.b\.type: got "integer", should be one of int, float, categorical',
        ),
        ("search: {a.b: {low: 1, high: 2}}", r"search\.a\.b\.type: got null, should be one of int"),
        (
            "search: {a.b: {type: int, low: [1], high: 2}}",
            r"search\.a\.b\.low: got \[1\], should be a number or an expression",
        ),
        (
            "search: {a.b: {type: float, low: 1, high: 2, step: 1, log: true}}",
            r"step = 1\.0 does not go with log",
        ),
        ("search: {a.b: {type: categorical, choices: []}}", r"choices: got \[\]"),
        ("search: {}", r"search: got \{\}"),
        (
            "pruner: {name: median, startup_trial: 1}",
            r"pruner\.startup_trial: unknown key; did you mean startup_trials\?",
        ),
        (
            "sampler: {name: cmaes}",
            r'sampler\.name: got "cmaes", should be one of tpe, gp, random, grid, nsgaii',
        ),
        (
            "pruner: {name: median}\nobjectives: [{metric: a/b}, {metric: c/d}]\n"
            "search: {a.b: {type: int, low: 1, high: 2}}",
            "pruner.name = median needs one objective, got 2",
        ),
    ],
)
def test_faults_of_a_sweep_file(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_sweep(path)


def test_a_fault_of_the_command_line_is_not_the_files() -> None:
    with pytest.raises(ConfigError, match="^command line: trials: got 0, should be greater"):
        read_sweep(CONFIGS / "sweep.yaml", {"trials": 0})


def test_the_projects_own_sweep_file_is_whole() -> None:
    sweep = read_sweep(CONFIGS / "sweep.yaml", {"trials": 3})
    assert sweep.trials == 3
    assert sweep == SweepConfig.model_validate_json(json.dumps(json.loads(sweep.model_dump_json())))


def test_a_method_of_ones_own_is_swept_like_any_other() -> None:
    own = load_config([], ["method.name=own_methods:Doubt"])
    is_own = "method.name != 'grpo'"
    search = {
        "method.name": {"type": "categorical", "choices": ["own_methods:Doubt", "grpo"]},
        "method.weight": {"type": "float", "low": 0.1, "high": 2.0, "when": is_own},
    }
    objectives = [{"metric": "loss/doubt", "direction": "minimize"}]
    sweep = SweepConfig.model_validate_json(
        json.dumps({"search": search, "objectives": objectives})
    )
    space = SearchSpace(sweep.search, own)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    configs = [space.config(space.sample(study.ask())) for _ in range(12)]
    names = {config.method.name for config in configs}
    assert names == {"own_methods:Doubt", "grpo"}
    (expression,) = parse_objectives(sweep.objectives, own)
    assert expression.names == ("loss/doubt",)
    with pytest.raises(ConfigError, match="loss/doubt.* is not declared"):
        parse_objectives(sweep.objectives, load_config())
